//! How often what happened above the lines: a simulation in which a kind of thing never happens proves nothing of it.

macro_rules! cases {
    ($($(#[$doc:meta])+ $name:ident = $text:literal,)+) => {
        /// A kind of thing that happens to engines, members and users.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Case { $($(#[$doc])+ $name,)+ }

        impl Case {
            /// All of them.
            pub const ALL: [Self; [$(Self::$name),+].len()] = [$(Self::$name),+];

            /// Its name, for people.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
}

cases! {
    /// An engine opened the array.
    Opened = "openings",
    /// It did so without a member.
    OpenedDegraded = "openings without a member",
    /// An opening was refused.
    Refused = "openings refused",
    /// An administrator opened it against all doubts.
    Forced = "openings by force",
    /// A mirror that was set aside, came back and is the only one left, beside one that was set aside after it had set
    /// that one aside: the disk of the third, which knew better, was exchanged. No label tells this from two histories.
    Diverged = "openings refused for good, of mirrors whose witness is another disk",
    /// An array failed since a cache counted as lost, for all that was known, while as many members were away as may be.
    DoubtedTooMany = "arrays that failed because a cache may have been lost",
    /// An array was opened that nobody had closed.
    Recovered = "openings after a crash",
    /// An engine's process died while it served.
    CrashServing = "crashes of serving engines",
    /// It died while it opened.
    CrashOpening = "crashes of opening engines",
    /// It died while it closed.
    CrashClosing = "crashes of closing engines",
    /// The machine of an engine died.
    MachineLost = "machines of engines lost",
    /// The next engine ran on the same machine.
    SameMachine = "engines after one of the same machine",
    /// The next engine ran on another machine.
    OtherMachine = "engines after one of another machine",
    /// It pushed an engine aside that lived.
    LivingPushedAside = "engines pushed aside while they live",
    /// An engine did nothing for a while.
    EngineHung = "engines that stood still",
    /// An engine that served found that it had been fenced out.
    EngineFenced = "serving engines fenced",
    /// An engine was told to close, with users' requests under way.
    ToldToClose = "orders to close",
    /// An array was closed in good order.
    Closed = "arrays closed",
    /// A member was set aside.
    MemberSetAside = "members set aside",
    /// A member was set aside because its cache was lost.
    CacheLossCounted = "members set aside for a lost cache",
    /// A member was suspected: it has no session.
    Suspected = "members suspected",
    /// A member answered reads so late that they went past it.
    ReadsGoPast = "members that reads went past",
    /// The engine looked for a member.
    LookedFor = "members looked for",
    /// It found it.
    MemberFound = "members found again",
    /// It is not back.
    NotBack = "members that are not back",
    /// A member takes part again, and lacks something.
    CatchingUp = "members that catch up",
    /// It holds everything again.
    CaughtUp = "members that have caught up",
    /// A device was prepared for a place.
    DeviceJoined = "devices prepared for a place",
    /// A device could not be had for a place.
    DeviceNotJoined = "devices that could not be had for a place",
    /// A device was prepared, and not taken.
    CandidateLetGo = "devices prepared and not taken",
    /// A device was given back.
    GivenBack = "devices given back",
    /// A member in sync is copied to a spare.
    MemberCopied = "members that are copied",
    /// A spare has everything that a member had, and its place.
    Succeeded = "members replaced by their copies",
    /// A member's place was taken by a spare.
    ReplacedBySpare = "members replaced by a spare",
    /// Bytes were written back from others.
    Repaired = "repairs",
    /// Parity was made to match after a crash.
    Resynced = "resyncs",
    /// A scrub ended.
    Scrubbed = "scrubs ended",
    /// A session was lost.
    SessionLost = "sessions lost by serving engines",
    /// A session could not be made.
    SessionNotMade = "sessions that could not be made",
    /// A session was made again.
    SessionAgain = "sessions made again",
    /// The same with member requests under way, which are sent once more.
    Reissued = "sessions made again with requests under way",
    /// A line learned that another has the disk.
    LineFenced = "lines fenced",
    /// A session is there, and not registered yet.
    NotRegistered = "sessions not registered yet",
    /// A session is used no more, because it cannot be registered.
    SessionGivenUp = "sessions given up",
    /// A member request ended in an error.
    MemberRequestFailed = "member requests that failed",
    /// It took too long.
    DeadlinePassed = "deadlines of member requests passed",
    /// A read was asked of an array without a member.
    DegradedRead = "reads without a member",
    /// The log began again at its beginning.
    LogWrapped = "logs that went round",
    /// A checkpoint was written.
    Checkpoint = "checkpoints written",
    /// Bits of written stripes were written.
    WrittenBits = "written bits stored",
    /// A user's request ended well.
    Request = "users' requests ended well",
    /// A user's request ended in an error.
    RequestFailed = "users' requests ended in an error",
    /// A user's request ended with an engine that died.
    RequestLost = "users' requests lost with an engine",
    /// A connection was cut.
    Cut = "faults: a cut",
    /// A connection was cut, and an end never heard of it.
    CutUnheard = "faults: a cut that an end never hears of",
    /// A connection stalled.
    Stall = "faults: a stall",
    /// Nothing passed between a host and an engine.
    Part = "faults: a partition",
    /// Nothing passed for longer than a member is waited for.
    LongPart = "faults: a long partition",
    /// A host did nothing for a while.
    Hang = "faults: a hang",
    /// A host did nothing for longer than a request may take.
    LongHang = "faults: a long hang",
    /// A disk was slow.
    Slow = "faults: a slow disk",
    /// A disk was slower than a request may take.
    Stuck = "faults: a stuck disk",
    /// An engine that opened the array ended with requests at disks.
    OpeningLeftRequests = "openings that ended with requests at disks",
    /// An initiator that is no engine had a session.
    Outsider = "faults: an initiator that is no engine",
    /// A device was held while an engine that died had requests there.
    HeldBehindDead = "devices held behind a dead engine",
    /// A device that was replaced was offered as the member that it was.
    ReplacedOffered = "replaced devices offered as members",
    /// A session was cut while requests took long.
    CutBesideStragglers = "faults: a cut beside stragglers",
    /// A member was to be replaced while requests took long at its disk.
    ReplacedBesideStragglers = "faults: a replacement beside stragglers",
    /// An engine was pushed aside that had lost a member.
    PushedAsideDegraded = "engines pushed aside that are without a member",
    /// Users read of an engine that was pushed aside.
    StaleRead = "reads of engines that were pushed aside",
    /// A LUN was removed, and added again.
    Removed = "faults: a LUN removed",
    /// Some requests took longer at a disk than they may, beside others.
    Straggling = "faults: a disk with stragglers",
    /// A host went away again while sessions were made to it.
    Bounced = "faults: a host away again at once",
    /// Something befell a member while an engine opened the array.
    BefellOpening = "faults: while an engine opens",
    /// An engine had fewer sessions a member than one before it.
    FewerSessions = "engines with fewer sessions than one before",
    /// An administrator held requests off a device.
    Held = "faults: a device held",
    /// An administrator ended all sessions.
    Dropped = "faults: sessions dropped",
    /// A block could not be read.
    Spoilt = "faults: an unreadable block",
    /// All requests to a disk failed.
    Failing = "faults: a failing disk",
    /// A target program was restarted.
    Restart = "faults: a target restarted",
    /// The same with nothing under way.
    QuietRestart = "faults: a target restarted with nothing under way",
    /// A host lost power.
    PowerOfOne = "faults: power of one",
    /// All hosts lost power.
    PowerOfAll = "faults: power of all",
    /// A disk was reset by itself.
    Reset = "faults: a disk reset",
    /// A member was set aside by command.
    FailedByOrder = "faults: a member set aside by command",
    /// A disk was replaced by a new one.
    NewDisk = "faults: a new disk",
    /// A token let a session in.
    GuestLetIn = "grants: sessions let in",
    /// A token did not let in.
    GuestRefused = "grants: sessions not let in",
    /// A read that was granted was done.
    GuestRead = "grants: reads",
    /// A block was read whose contents are known.
    GuestCompared = "grants: blocks compared",
    /// A write that was granted was done.
    GuestWrote = "grants: writes",
    /// A flush that was granted was done.
    GuestFlushed = "grants: flushes",
    /// A registration that was granted was made.
    GuestRegistered = "grants: registrations",
    /// Something that was granted was not done.
    GuestFailed = "grants: commands that failed",
    /// Something that was granted was done before its segment was fenced, and its end heard after that.
    GuestDoneBeforeFence = "grants: commands done before a fence",
    /// A command was denied because the grant was over.
    DeniedLate = "grants: commands after the grant",
    /// A command was denied for want of a right.
    DeniedRight = "grants: commands without a right",
    /// A plan was ended.
    PlanEnded = "grants: plans ended",
    /// A plan was extended.
    PlanExtended = "grants: plans extended",
    /// Something was done after the end of its token, since its plan was extended.
    GuestDoneExtended = "grants: commands done in an extended plan",
    /// A segment was fenced.
    SegmentFenced = "grants: segments fenced",
    /// A segment was closed by its owner.
    SegmentClosed = "grants: segments closed",
    /// Nothing of fenced sessions was at the device any more.
    SegmentDrained = "grants: segments drained",
}

/// So many of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cases([u64; Case::ALL.len()]);

impl Default for Cases {
    fn default() -> Self {
        Self([0; Case::ALL.len()])
    }
}

impl Cases {
    /// So many of this kind.
    #[must_use]
    pub const fn get(&self, case: Case) -> u64 {
        self.0[case as usize]
    }

    /// Counts one.
    pub const fn add(&mut self, case: Case) {
        self.0[case as usize] += 1;
    }

    /// Adds another run's.
    pub fn add_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }

    /// Each kind, and how often it happened.
    pub fn iter(&self) -> impl Iterator<Item = (Case, u64)> + '_ {
        Case::ALL.into_iter().map(|case| (case, self.get(case)))
    }
}
