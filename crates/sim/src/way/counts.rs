//! How often what happened: a simulation in which a kind of event never happens proves nothing of it.

use core::ops::AddAssign;

macro_rules! counts {
    ($($(#[$doc:meta])+ $name:ident = $text:literal,)+) => {
        /// A kind of event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Count { $($(#[$doc])+ $name,)+ }

        impl Count {
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

counts! {
    /// A connection was made.
    Dialled = "connections made",
    /// A host refused a connection.
    DialRefused = "dials refused",
    /// A dial that nobody answers.
    DialUnanswered = "dials never answered",
    /// A dial of a session beside the first one that nobody answers.
    DialBesideUnanswered = "dials of sessions beside the first never answered",
    /// A dial that takes its time.
    DialSlow = "dials that are slow",
    /// A piece of a stream ended within a header.
    PieceInHeader = "pieces that end within a header",
    /// A piece of a stream ended within a data segment.
    PieceInData = "pieces that end within data",
    /// A connection was cut within a header.
    CutInHeader = "cuts within a header",
    /// A connection was cut within a data segment.
    CutInData = "cuts within data",
    /// A connection was cut between two PDUs.
    CutBetween = "cuts between PDUs",
    /// A connection was cut, and one end never hears of it.
    CutUnheard = "cuts that an end never hears of",
    /// A host took bytes of a connection that its engine had given up.
    LateDelivery = "late deliveries after the engine gave up",
    /// A host took a whole command of a connection that its engine had given up.
    LateCommand = "commands taken after the engine gave up",
    /// A write reached the medium whose engine had given up the connection.
    LateWrite = "writes at the medium after the engine gave up",
    /// A direction of a connection stalled.
    Stalled = "stalls",
    /// A sender waited for room.
    NoRoom = "waits for room in a stream",
    /// An engine and a host were parted.
    Parted = "partitions",
    /// A login ended a session of the same name.
    Reinstated = "sessions reinstated",
    /// A session was admitted.
    LoggedIn = "sessions admitted",
    /// A task management function came to a target.
    TaskFunction = "task management functions",
    /// A task management function ended without its tasks.
    TaskFunctionFailed = "task management functions that failed",
    /// A task was aborted by task management.
    TaskAborted = "tasks aborted",
    /// A write of a dead engine landed at a disk at which the removal of its registration was not answered.
    LateAfterSilence = "writes that landed after a removal that was not answered",
    /// A target dropped a connection because its peer was silent.
    SilentPeer = "silent peers dropped by a target",
    /// A target saw a peer that breaks the protocol.
    ProtocolError = "protocol errors seen by a target",
    /// A target saw a wrong digest.
    DigestError = "wrong digests seen by a target",
    /// A target answered a PDU by a Reject.
    Rejected = "PDUs rejected",
    /// A login was not finished in time.
    LoginTimeout = "logins not finished in time",
    /// An administrator ended a session.
    SessionDropped = "sessions ended by an administrator",
    /// Data was asked for by an R2T.
    R2t = "R2Ts",
    /// Data of a write came in another PDU than its command.
    DataOut = "Data-Out PDUs",
    /// Data of a write came that nobody had asked for, after its command.
    UnsolicitedDataOut = "Data-Out PDUs that were not asked for",
    /// Data of a write came with its command.
    ImmediateData = "commands with immediate data",
    /// Data of a read came in a PDU that is not the last one of its command.
    DataInMore = "Data-In PDUs that others follow",
    /// A disk refused a command that it lacks.
    Lacked = "commands that a disk lacks",
    /// A task management function of an initiator that is no engine came to a target.
    ForeignFunction = "task management functions of others",
    /// A LUN left its target, with all its commands ended.
    LunRemoved = "LUNs removed",
    /// A request took much longer at a disk than those beside it.
    Straggled = "requests that straggle at a disk",
    /// A held device was left by all commands, and taken away for a moment.
    TakenAway = "held devices that all commands have left",
    /// A unit attention condition was delivered.
    UnitAttention = "unit attentions delivered",
    /// A command ended with another check condition.
    CheckCondition = "other check conditions",
    /// A command ended with RESERVATION CONFLICT.
    Conflict = "reservation conflicts",
    /// A command ended with BUSY or TASK SET FULL.
    Busy = "busy answers",
    /// A key was registered, or taken back.
    Register = "registrations",
    /// A reservation was made.
    Reserve = "reservations",
    /// A reservation was given back.
    Release = "releases",
    /// All registrations were removed.
    Clear = "clears",
    /// A PREEMPT or PREEMPT AND ABORT came.
    Preempt = "preempts",
    /// The same, with commands of others at the device.
    PreemptUnderWay = "preempts with commands of others under way",
    /// Reservations were stored.
    Stored = "reservations stored",
    /// A disk read.
    Read = "reads at a medium",
    /// A disk wrote.
    Write = "writes at a medium",
    /// A disk flushed.
    Flush = "flushes at a medium",
    /// A disk discarded, or wrote zeros.
    Discard = "discards at a medium",
    /// A disk could not read.
    MediumError = "medium errors",
    /// A write was torn.
    TornWrite = "writes torn",
    /// A host lost power.
    PowerLost = "power losses",
    /// A host lost power with writes in its cache.
    PowerLostDirty = "power losses with a dirty cache",
    /// A target program was killed.
    Killed = "target programs killed",
    /// A target program was killed with requests at its disk.
    KilledUnderWay = "target programs killed with requests under way",
    /// A target program began with reservations that the disk had kept.
    Remembered = "reservations kept beyond a target program",
    /// A disk was reset by itself, and its sessions went on.
    Reset = "disks reset by themselves",
    /// The same with unflushed writes in its cache.
    ResetDirty = "disks reset with unflushed writes",
    /// A session that was made again broke off soon.
    Brief = "sessions that broke off soon after they were made again",
    /// The device of an agent's segment was opened.
    SegmentOpened = "segments opened",
    /// It could not be opened.
    SegmentUnopened = "segments that could not be opened",
    /// It was closed because nobody used it.
    SegmentSlept = "segments put to sleep",
    /// It was closed by its owner under sessions.
    SegmentRemoved = "segments closed by their owner",
    /// A login waited for its segment.
    LoginWaited = "waits of logins for a segment",
    /// A target program began.
    Started = "target programs started",
    /// A host did nothing for a while.
    Hung = "hangs of a host",
    /// An engine's process ended without a word.
    EngineKilled = "engines killed",
    /// An engine's machine lost power.
    EngineLost = "engines that lost power",
    /// A line was opened.
    Opened = "disks opened",
    /// A line could not be opened.
    NotOpened = "disks not opened",
    /// A session was lost.
    SessionLost = "sessions lost",
    /// A line stood still, and what was due meanwhile was put off.
    StoodStill = "standstills of lines that did not count",
    /// A session was made again.
    Reconnected = "sessions made again",
    /// A session of a predecessor may remain.
    PredecessorMayRemain = "predecessors that may remain",
    /// A line was fenced.
    Fenced = "disks fenced",
    /// A line heard of a cache that may be lost.
    CacheLost = "lost caches heard of",
    /// A request ended well.
    EndedWell = "requests ended well",
    /// A request ended in an error.
    EndedBadly = "requests ended in an error",
}

/// So many of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts([u64; Count::ALL.len()]);

impl Default for Counts {
    fn default() -> Self {
        Self([0; Count::ALL.len()])
    }
}

impl Counts {
    /// So many of this kind.
    #[must_use]
    pub const fn get(&self, count: Count) -> u64 {
        self.0[count as usize]
    }

    /// Counts one.
    pub const fn add(&mut self, count: Count) {
        self.add_many(count, 1);
    }

    /// Counts several.
    pub const fn add_many(&mut self, count: Count, more: u64) {
        self.0[count as usize] += more;
    }

    /// Each kind, and how often it happened.
    pub fn iter(&self) -> impl Iterator<Item = (Count, u64)> + '_ {
        Count::ALL.into_iter().map(|count| (count, self.get(count)))
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }
}
