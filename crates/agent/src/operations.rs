//! What mediators ask for, in the order of its effects.
//!
//! ```text
//! create   space committed -> file made, durable -> row durable            -> served, answered
//! raise    old tokens out  -> row durable -> old sessions ended, their requests done -> answered
//! remove   not served      -> row says so, durable -> sessions ended -> file gone -> row gone -> answered
//! ```
//!
//! A crash anywhere leaves what the same operation, asked again, goes on from. Whatever concerns one
//! segment is done one after the other; everything else beside it.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::future::join_all;
use netraid_cluster::agent::{Answer, Done, Fault, FaultCode, Operation};
use netraid_control::units::{Generation, MediatorId, Moment, PlanId, SegmentId};
use netraid_engine::target::{CommandError, TargetHandle};
use serde_json::json;
use tokio::sync::{OwnedMutexGuard, Semaphore};

use crate::{
    audit::Audit,
    book::{Step, Then, fault},
    keeper::Keeper,
    records::Key,
    segments::{Segments, Undone},
};

/// Documents that are carried out at a time.
const DOCUMENTS_MAX: usize = 256;

/// Carries documents out; clones are the same one.
#[derive(Clone)]
pub(crate) struct Operations(Arc<Inner>);

struct Inner {
    keeper: Keeper,
    target: TargetHandle,
    segments: Arc<Segments>,
    audit: Audit,
    places: Arc<Semaphore>,
    /// Who changes a segment has its lock; those that nobody has go.
    turns: Mutex<HashMap<Key, Arc<tokio::sync::Mutex<()>>>>,
}

impl Operations {
    pub(crate) fn new(
        keeper: Keeper,
        target: TargetHandle,
        segments: Arc<Segments>,
        audit: Audit,
    ) -> Self {
        let (places, turns) = (Arc::new(Semaphore::new(DOCUMENTS_MAX)), Mutex::default());
        Self(Arc::new(Inner { keeper, target, segments, audit, places, turns }))
    }

    /// Carries a document out, to its end also when nobody waits for the answer any more.
    pub(crate) async fn carry_out(
        &self,
        mediator: MediatorId,
        operations: Vec<Operation>,
    ) -> Vec<Answer> {
        let count = operations.len();
        let all = |code, detail: &str| vec![Err(fault(code, detail)); count];
        let Ok(place) = Arc::clone(&self.0.places).try_acquire_owned() else {
            return all(FaultCode::Busy, "too many documents are under way; ask again");
        };
        let inner = Arc::clone(&self.0);
        let task = tokio::spawn(async move {
            let answers = inner.carry_out(mediator, operations).await;
            drop(place);
            answers
        });
        task.await.unwrap_or_else(|_| all(FaultCode::Failed, "the agent is ending; ask again"))
    }

    /// Goes on with a removal that was begun before the agent started.
    pub(crate) async fn finish_removal(&self, (mediator, segment): Key) {
        let operations = vec![Operation::RemoveSegment { segment }];
        for answer in self.carry_out(mediator, operations).await {
            if let Err(Fault { detail, .. }) = answer {
                tracing::error!(%mediator, %segment, "a removal that was begun: {detail}");
            }
        }
    }
}

impl Inner {
    async fn carry_out(&self, mediator: MediatorId, operations: Vec<Operation>) -> Vec<Answer> {
        let touched = operations.iter().filter_map(segment_of).map(|id| (mediator, id));
        let turns = self.take_turns(touched.collect()).await;
        let mut answers = Vec::with_capacity(operations.len());
        for run in runs(operations) {
            answers.extend(self.carry_out_run(mediator, run).await);
        }
        drop(turns);
        self.forget_turns();
        answers
    }

    /// Carries out operations whose effects on the book may come before all other effects.
    async fn carry_out_run(&self, mediator: MediatorId, run: Vec<Operation>) -> Vec<Answer> {
        let count = run.len();
        let applied = self.keeper.change(move |book, now| {
            let apply = |operation| book.apply(now, mediator, operation);
            run.into_iter().map(apply).collect::<Vec<_>>()
        });
        let mut steps: Vec<Result<Step, Fault>> = match applied.await {
            Ok(steps) => steps,
            Err(fault) => return vec![Err(fault); count],
        };
        self.make_all(mediator, &mut steps).await;
        self.write_labels(mediator, &mut steps).await;
        let closing = steps.into_iter().map(|step| self.follow(mediator, step));
        let mut answers = join_all(closing).await;
        self.remove_all(mediator, &mut answers).await;
        assert_eq!(answers.len(), count, "each operation has its answer");
        answers.into_iter().map(|answer| answer.map(|(done, _)| done)).collect()
    }

    /// Makes the files of new segments, then stores that they are there. What else was asked of one
    /// that cannot be made fails with it.
    async fn make_all(&self, mediator: MediatorId, steps: &mut [Result<Step, Fault>]) {
        let mut new = Vec::new();
        for step in steps.iter().flatten() {
            if let Then::Make(made) = &step.then {
                new.push(made.clone());
            }
        }
        if new.is_empty() {
            return;
        }
        let ids: Vec<SegmentId> = new.iter().map(|new| new.segment).collect();
        let segments = Arc::clone(&self.segments);
        let made = tokio::task::spawn_blocking(move || {
            let make = |new: &netraid_cluster::agent::NewSegment| {
                segments.make((mediator, new.segment), new.len_bytes, &new.label)
            };
            new.iter().map(make).collect::<Vec<_>>()
        });
        let mut made = made.await.unwrap_or_default();
        assert!(made.is_empty() || made.len() == ids.len(), "each segment was made, or was not");
        made.resize(ids.len(), Err(Undone::other("the agent is ending".to_owned())));
        for error in made.iter().filter_map(|made| made.as_ref().err()) {
            tracing::error!("{error}");
        }
        let found: Vec<_> = ids.iter().copied().zip(made.iter().map(Result::is_ok)).collect();
        let stored = self.keeper.change(move |book, _| {
            let finish = |(id, is_made)| book.finish_making((mediator, id), is_made).err();
            found.into_iter().map(finish).collect::<Vec<_>>()
        });
        let faults: Vec<Option<Fault>> = match stored.await {
            Ok(faults) => faults,
            Err(fault) => vec![Some(fault); ids.len()],
        };
        let unmade: HashMap<_, _> = ids
            .into_iter()
            .zip(faults.into_iter().zip(made))
            .filter_map(|(id, (fault, made))| {
                let mut fault = fault?;
                if let Err(why) = made {
                    fault = why.fault();
                }
                Some((id, fault))
            })
            .collect();
        for step in steps {
            let segment = step.as_ref().ok().and_then(|step| step.then.segment());
            if let Some(fault) = segment.and_then(|id| unmade.get(&id)) {
                *step = Err(fault.clone());
            }
        }
    }

    async fn write_labels(&self, mediator: MediatorId, steps: &mut [Result<Step, Fault>]) {
        let labels = steps.iter().enumerate().filter_map(|(at, step)| match step {
            Ok(Step { then: Then::WriteLabel(id, len_bytes, label), .. }) => {
                Some((at, *id, *len_bytes, label.clone()))
            }
            _ => None,
        });
        let labels: Vec<_> = labels.collect();
        if labels.is_empty() {
            return;
        }
        let segments = Arc::clone(&self.segments);
        let written = tokio::task::spawn_blocking(move || {
            let write = |(at, id, len_bytes, label)| {
                let written = segments.write_label((mediator, id), len_bytes, &label);
                written.err().map(|why| (at, why))
            };
            labels.into_iter().filter_map(write).collect::<Vec<(usize, Undone)>>()
        });
        for (at, why) in written.await.unwrap_or_default() {
            tracing::error!("{why}");
            steps[at] = Err(why.fault());
        }
    }

    /// Does what the target has to do before the answer leaves.
    async fn follow(
        &self,
        mediator: MediatorId,
        step: Result<Step, Fault>,
    ) -> Result<(Done, Option<SegmentId>), Fault> {
        let Step { done, then } = step?;
        let mut removed = None;
        let (order, told) = match then {
            Then::Nothing | Then::Make(_) | Then::WriteLabel(..) => return Ok((done, None)),
            Then::Raise(segment, generation) => {
                let raised = self.raise(mediator, segment, generation).await;
                ("raise the generation of a segment", raised)
            }
            Then::Remove(segment) => {
                removed = Some(segment);
                ("close a segment", self.target.close_segment(mediator, segment).await)
            }
            Then::Extend(plan, until) => {
                ("extend a plan", self.extend(mediator, plan, until).await)
            }
            Then::End(plan, revoked) => {
                let ended = self.target.end_plan(mediator, plan).await.map(drop);
                if ended.is_ok() {
                    revoked?;
                }
                ("end a plan", ended)
            }
        };
        match told {
            Ok(()) => Ok((done, removed)),
            Err(error) => {
                tracing::error!(%mediator, order, %error, "the target could not carry out an order");
                Err(fault(FaultCode::Failed, error.to_string()))
            }
        }
    }

    async fn raise(
        &self,
        mediator: MediatorId,
        segment: SegmentId,
        generation: Generation,
    ) -> Result<(), CommandError> {
        let fields = json!({
            "mediator": mediator, "segment": segment, "generation": generation,
        });
        self.audit.tell("generation_raised", fields);
        self.target.raise_generation(mediator, segment, generation).await
    }

    async fn extend(
        &self,
        mediator: MediatorId,
        plan: PlanId,
        until: Moment,
    ) -> Result<(), CommandError> {
        self.target.extend_plan(mediator, plan, until).await.map(drop)
    }

    /// Removes the data of segments whose sessions have ended, then all that is booked for them.
    async fn remove_all(
        &self,
        mediator: MediatorId,
        answers: &mut [Result<(Done, Option<SegmentId>), Fault>],
    ) {
        let ended = answers.iter().enumerate().filter_map(|(at, answer)| match answer {
            Ok((_, Some(segment))) => Some((at, (mediator, *segment))),
            _ => None,
        });
        let ended: Vec<(usize, Key)> = ended.collect();
        if ended.is_empty() {
            return;
        }
        let (segments, keys) = (Arc::clone(&self.segments), ended.clone());
        let gone = tokio::task::spawn_blocking(move || {
            let remove = |(at, key)| (at, key, segments.remove(key));
            keys.into_iter().map(remove).collect::<Vec<_>>()
        });
        let Ok(gone) = gone.await else {
            for (at, _) in ended {
                answers[at] = Err(fault(FaultCode::Failed, "the agent is ending; ask again"));
            }
            return;
        };
        let finished = self.keeper.change(move |book, _| {
            let finish = |(at, key, gone): (usize, Key, Result<(), String>)| {
                let gone = gone.map_err(|why| fault(FaultCode::Failed, why));
                (at, gone.and_then(|()| book.finish_removal(key)))
            };
            gone.into_iter().map(finish).collect::<Vec<_>>()
        });
        let finished = match finished.await {
            Ok(finished) => finished,
            Err(fault) => ended.iter().map(|(at, _)| (*at, Err(fault.clone()))).collect(),
        };
        for (at, released) in finished {
            answers[at] = released.map(|count| (Done::Released(count), None));
        }
    }

    /// Takes the locks of segments, in their order: nobody waits for another in a circle.
    async fn take_turns(&self, keys: BTreeSet<Key>) -> Vec<OwnedMutexGuard<()>> {
        let mut turns = Vec::with_capacity(keys.len());
        for key in keys {
            let lock = {
                let mut all = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(all.entry(key).or_default())
            };
            turns.push(lock.lock_owned().await);
        }
        turns
    }

    fn forget_turns(&self) {
        let mut all = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, lock| Arc::strong_count(lock) > 1);
    }
}

impl Then {
    fn segment(&self) -> Option<SegmentId> {
        match self {
            Self::Make(new) => Some(new.segment),
            Self::WriteLabel(segment, ..) | Self::Raise(segment, _) | Self::Remove(segment) => {
                Some(*segment)
            }
            Self::Nothing | Self::Extend(..) | Self::End(..) => None,
        }
    }
}

/// The segment that an operation changes beyond what is booked.
const fn segment_of(operation: &Operation) -> Option<SegmentId> {
    match operation {
        Operation::CreateSegment(new) => Some(new.segment),
        Operation::SetLabel { segment, .. }
        | Operation::RaiseGeneration { segment, .. }
        | Operation::RemoveSegment { segment } => Some(*segment),
        Operation::Hold(_)
        | Operation::Commit(_)
        | Operation::Book { .. }
        | Operation::Renew { .. }
        | Operation::Release { .. }
        | Operation::ExtendPlan { .. }
        | Operation::EndPlan { .. } => None,
    }
}

const fn removed_by(operation: &Operation) -> Option<SegmentId> {
    if let Operation::RemoveSegment { segment } = operation { Some(*segment) } else { None }
}

/// Parts a document so that nothing comes after a removal in one part, but for removals of other
/// segments: what follows finds all of it done.
fn runs(operations: Vec<Operation>) -> Vec<Vec<Operation>> {
    let mut runs: Vec<Vec<Operation>> = Vec::new();
    let mut removed: HashSet<SegmentId> = HashSet::new();
    let mut is_removing = false;
    for operation in operations {
        let removes = removed_by(&operation);
        let again = removes.is_some_and(|segment| !removed.insert(segment));
        if runs.is_empty() || again || (is_removing && removes.is_none()) {
            runs.push(Vec::new());
            removed.clear();
            removed.extend(removes);
        }
        is_removing = removes.is_some();
        if let Some(run) = runs.last_mut() {
            run.push(operation);
        }
    }
    runs
}
