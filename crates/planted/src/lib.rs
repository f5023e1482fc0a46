//! Errors planted on purpose, one at a time, so that it can be shown that the simulator sees each
//! (`cargo xtask mutate`).
//!
//! Invariant: without the feature `planted-errors`, [`planted`] is `false` for the compiler, so that nothing of them is
//! in a program. Each error breaks one rule, at the place that keeps it; what the rule is for stands there.
#![no_std]

/// Whether an error is the one that is planted.
#[cfg(feature = "planted-errors")]
#[must_use]
pub fn planted(error: Planted) -> bool {
    chosen::get() == Some(error)
}

/// Whether an error is the one that is planted: none is in a program for use.
#[cfg(not(feature = "planted-errors"))]
#[must_use]
#[inline]
pub const fn planted(_error: Planted) -> bool {
    false
}

/// The smallest world in which an error shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum World {
    /// Arrays over members that answer requests.
    Array,
    /// The whole way: sessions, targets and their disks beneath an array.
    Way,
    /// Members that answer at their own pace, and the machine that judges it.
    Pace,
}

macro_rules! errors {
    (
        array { $($array:ident: $array_text:literal,)* }
        way { $($way:ident: $way_text:literal,)* }
        pace { $($pace:ident: $pace_text:literal,)* }
        seldom_array { $($seldom_array:ident: $seldom_array_text:literal,)* }
        seldom_way { $($seldom_way:ident: $seldom_way_text:literal,)* }
    ) => {
        /// An error in what the product decides.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Planted {
            $(#[doc = $array_text] $array,)*
            $(#[doc = $way_text] $way,)*
            $(#[doc = $pace_text] $pace,)*
            $(#[doc = $seldom_array_text] $seldom_array,)*
            $(#[doc = $seldom_way_text] $seldom_way,)*
        }

        #[cfg(feature = "planted-errors")]
        impl Planted {
            /// All of them.
            pub const ALL: &[Self] = &[
                $(Self::$array,)* $(Self::$way,)* $(Self::$pace,)* $(Self::$seldom_array,)* $(Self::$seldom_way,)*
            ];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$array => stringify!($array),)*
                    $(Self::$way => stringify!($way),)*
                    $(Self::$pace => stringify!($pace),)*
                    $(Self::$seldom_array => stringify!($seldom_array),)*
                    $(Self::$seldom_way => stringify!($seldom_way),)*
                }
            }

            /// Where it shows.
            #[must_use]
            pub const fn world(self) -> World {
                match self {
                    $(Self::$array => World::Array,)*
                    $(Self::$way => World::Way,)*
                    $(Self::$pace => World::Pace,)*
                    $(Self::$seldom_array => World::Array,)*
                    $(Self::$seldom_way => World::Way,)*
                }
            }

            /// Whether each campaign of `cargo xtask mutate` is expected to show it, and not some of them only.
            #[must_use]
            pub const fn is_shown(self) -> bool {
                !matches!(self, $(Self::$seldom_array)|* | $(Self::$seldom_way)|*)
            }
        }
    };
}

errors! {
    array {
        LossForgottenByPause: "What was lost while the array paused reads as what was there before.",
        MadeAgainBehindReadAhead: "What is read ahead after a pause is not told of writes that are made again.",
        AckAfterOneCopy: "A batch is acknowledged when one member has completed it.",
        AckOutOfOrder: "A batch is acknowledged before the one before it.",
        AckBeforeLabels: "The log goes on without a member that failed before labels say so.",
        FreeOnCompleted: "A stripe that was left is free when its REMAP is completed, not stable.",
        HomeBeforeParityStable: "Blocks are written home before their PARITY is stable.",
        TailWithoutFlush: "The tail moves to a cut without any flush.",
        CheckpointBeforeImages: "A checkpoint is written before the images that it rests on are stable.",
        PageFromOneCopy: "Pages are loaded from one of their holders.",
        RedoOfClosedRounds: "A PARITY of a round that is over is redone.",
        RedoIgnoresOwner: "A PARITY is redone on a stripe that has another owner since.",
        RedoNewerThanBasis: "The newest DATA is written home with the parity of older DATA.",
        UnverifiedUpdate: "Parity is computed from old blocks that were not verified.",
        NoHomeLock: "A round works on a stripe that somebody else works on.",
        LackIgnored: "A member that is back counts as in sync with what it lacks.",
        MarkBeforeStable: "Labels say how far a member has caught up before that is stable.",
        JoinsWithoutLog: "A member that is back counts as in sync without the log of before.",
        ReturnBeforeOperations: "Catching up does not wait for what began without the member.",
        OlderImageAccepted: "A member that is older than the others say takes part in recovery.",
        PowerCycleIgnored: "What a member completed before it left counts as stable.",
        PositionBeforeGeneration: "A batch is adopted whichever generation wrote it.",
        DroppedRemapsForgotten: "A REMAP that a recovery dropped counts for the next one.",
        UnverifiedRemap: "A REMAP counts whatever its stripe holds.",
        CopiesNotMade: "Recovery leaves batches on fewer members than it promises.",
        RedoBeforeDecision: "Recovery writes home before its decision is stable.",
        ServesBeforeDecision: "Recovery serves before its decision is stable.",
        FlushSkipsChunkMembers: "A flush leaves out members that completed nothing of the log.",
        FlushSkipsEarlierBatches: "A flush leaves out members that hold only earlier batches.",
        FlushCoversLater: "A flush counts for what completed after it was sent.",
        AheadKeptThroughChange: "What was read ahead stays when it is changed.",
        AheadBesideChange: "Something is read ahead while a change of it is in flight.",
        PieceErrorForgotten: "A member request ends well although a piece of it failed.",
        PartedStays: "A member that was set aside keeps its device.",
        FaultyWhileOpeningStays: "A member that is set aside while the array opens keeps its device.",
        IdleForgotten: "Nobody brings home what nobody asks for.",
        ClosesBesideRequests: "The machine closes while users' requests are in flight.",
        WaitingReadsStay: "Large reads that wait for room never begin.",
        NeverSentNeverEnds: "A member request that could not be sent never ends.",
        LateWriteAllowed: "A session begins anew without a reset of what the last one left behind.",
        BirthFromRound: "A stripe is born with the number of its round, not of the next snapshot.",
        UnnamedListBelieved: "A list of snapshots counts that the checkpoint does not name.",
        ListForgotten: "A checkpoint does not name the list of snapshots that the one before it named.",
        AtomicWriteSplit: "The records of an atomic write go into several batches.",
        ListNotGiven: "A member gets a checkpoint without the list of snapshots that it names.",
    }
    way {
        StandstillCounts: "A process that stood still judges by the time that has passed before it looks what has come.",
        LostWriteCountsAsDone: "A command that was under way when its session was lost counts as carried out.",
        HeldWriteSentAtOnce: "A write that was under way in a lost session is sent again before that session's end.",
        GivenUpNotAborted: "A command that is given up is not aborted.",
        UnansweredAbortBelieved: "An abort that the target does not answer counts as carried out.",
        HeldWriteNeverExpires: "A write that is held when its time is up never ends without a session.",
        OrderSentWhileBarred: "An order is sent while a write that was given up may still land.",
        GivenBackBesideWrites: "A registration is given back while writes that were sent under it are under way.",
        KeyUncheckedAfterReconnect: "A session that was made again does not ask whether it is registered still.",
        CacheLossInSessionForgotten: "A unit attention that tells of a lost cache is not counted as a loss.",
        CacheLossBeforeReconnectForgotten: "A session that is made again counts no lost cache.",
        ForcedWriteNotFlushed: "A FUA write to a disk without the bit is not followed by a flush.",
        PiecesInOrderOfTheirEnds: "The pieces of a read are put together as they end.",
        ReplacedDeviceTakenBack: "A device that was replaced is taken back as the member.",
        ExclusiveBesideOthers: "A member whose reservation is held counts as fenced while others are registered.",
        RemovedWithoutAborting: "Others are removed without an end to what they have under way.",
        WaryMemberSetFree: "A member from which somebody was removed who may be alive is given back to all.",
        ClosedGatePassed: "A command that has not begun passes a gate that is held or leaves.",
        DeviceLeftWithConnection: "Commands at a device count no more as there when their connection is gone.",
        ReinstatedBesideCommands: "A session is admitted while commands of the one that it replaces run.",
        AbortAnsweredBeforeEnd: "ABORT TASK is answered while the task is at the device.",
        PreemptAnsweredBeforeEnd: "PREEMPT AND ABORT is answered while what it aborts in other sessions is at the device.",
        ClearedToldToOthers: "All but the session whose commands were cleared are told so.",
        RestartToldAsNexusLoss: "A nexus that is new to a logical unit hears of a lost nexus, not of a power on.",
        UntoldForgottenWithNexus: "Unit attentions that a nexus has not heard are forgotten when it is lost.",
        AskedDataFromStart: "Data that is asked for is placed as if none had come unasked before.",
        WrittenBeforeAllData: "A write goes to the device when the first PDU of its last burst is in.",
        FlushAnsweredEarly: "SYNCHRONIZE CACHE is answered without a flush of the device.",
        FuaForgotten: "The FUA bit of a write does not reach the device.",
        EndedPermitHolds: "A session that was ended may go on as its grant says.",
        DeniedRequestSent: "A request goes to the device that its session's grant does not allow at that moment.",
        PiecesForgotten: "A request goes to where its session says, not to where its grant puts that.",
        GuestUncounted: "A command of a session that a token let in does not count as at the device.",
        NewerGenerationHolds: "A grant holds on when its segment has a newer generation.",
        ExtensionRevives: "A session that was ended goes on when its grant is extended.",
        ExtensionIgnored: "A grant that is extended ends when it would have ended before.",
        ReserveByAnyGrant: "Reservations are changed by any grant that holds, whatever its rights are.",
        SpanSentAsOne: "A request that spans ranges goes out whole where its first piece is where the session says.",
        StoreUncounted: "A command whose reservations are stored does not count as at the device.",
        SegmentSizeShown: "A session sees the size of the segment, not that of its ranges.",
        EndedPlanLetIn: "A login that waited for its segment is let in though its plan was ended meanwhile.",
        ParkedLoginForgotten: "Nobody opens the device of a segment again for a login that came while the device was closed.",
        EndedSessionUsesNothing: "A session that was ended keeps its device open no more, whatever it has there.",
        GenerationSetBack: "The generation of a segment goes back.",
        NothingEndedNothingAwaited: "An order that ends no session itself does not wait for those that were ended before.",
        CloseMissesOpening: "A segment that is closed while its device is being opened is opened all the same.",
        CloseMissesClosing: "A segment that is closed while it falls asleep only sleeps.",
        FenceEndsPresent: "A fence that is repeated ends sessions of the present generation.",
        PlanEndsOnce: "Of a plan's sessions only the first one is ended.",
        OrderDoneAtOnce: "A fence or the end of a plan does not wait for the commands of the sessions that it ends.",
        RightUnaskedAfterData: "A command is not asked for the right that it takes when its data has come.",
    }
    pace {
        HedgesUncapped: "Hedges send as many reads as they like.",
        SlowMemberForgiven: "A slow member counts as fast although a read to it is still under way.",
        StandstillCounted: "Time in which the engine stood still makes its members' reads late.",
    }
    seldom_array {
        ComputedNotVerified: "What is computed from other members is given to users without a look at checksums.",
        GoesOnAfterTakeOver: "An array that paused goes on although another engine has had it meanwhile.",
        GoesOnWithOlderMembers: "An array that paused goes on with members that were set aside before.",
        PauseNeverEnds: "A pause goes on beyond its limit.",
        FlushAfterLossSucceeds: "A flush succeeds although what it was to make stable is lost.",
        SlotReusedBeforeTailStable: "The log goes over what is below a cut before its checkpoint is stable.",
        PageBeforeStable: "Images are written before what they say is stable.",
        CacheLossBelieved: "What a member answers that has lost its cache is believed.",
    }
    seldom_way {
        SuccessorMissesWrites: "A device that a member is copied to does not get what is written meanwhile.",
        IdleWritesOutliveRegistration: "What waits is still sent after the registration was given back for good.",
        LateSessionJoinsUnwitnessed: "A late session carries requests although no other one has shown that it is registered still.",
        OtherDiskAcceptedAfterReconnect: "A disk of the same size counts as the one that was found first.",
        DoubtOfExaminationForgotten: "What a failed examination was told of a lost cache is not handed on to the next one.",
        JoinsUnannounced: "A device joins without being told of this engine before it is looked whose the array is.",
        AnnouncedAnew: "An engine that was removed from a device which joins registers there again.",
        FencedOnce: "Who opens an array does not look at its members once more when all are fenced.",
        UsedAfterSilence: "A device that does not answer whether it takes a registration is used without.",
        SentAfterCacheLoss: "What waits is sent to a disk that lost its cache since the array relies on it.",
        FormerDeviceBelieved: "What a device answers that has its place no more counts for its successor.",
        UsedAfterRemovalFailed: "A member at which the removal of another did not end is used unfenced.",
        OthersProgressGivesTimeForEver: "A request that has its turn gets more time for whatever the disk does for others.",
        HolderNotChecked: "Nobody asks whether a member was taken over since it was fenced.",
        OnlyOwnCountOfSessionsTakenOver: "A predecessor's sessions are ended only as far as this side has as many.",
        OnlyFlushRepeatedAfterLoss: "After a cache was lost before its flush, the flush is repeated and the write is not.",
        TakenBackWhileOthersAreAway: "A member is taken back while another one has no session.",
        WentOnTakenBack: "A device that went on without the others is taken back as the member.",
        LiveEngineRemoved: "The registration of an engine that may be alive is removed without a word.",
        ReservationsChangeBesideAborted: "Reservations change while something that was aborted may still be written.",
        ReturnBesideLeavingSession: "A member is looked for while its former session has not ended.",
        LateAttentionIgnored: "A unit attention that ends a command that was given up is not heeded.",
        FirstOfSessionsAnswersForAll: "What ends tasks of several sessions is answered when the first session has ended its own.",
        ReservationUncheckedAtData: "A write whose data comes after a reservation does not ask for it again.",
        HeldGivenUpForgotten: "A write that is given up while it is held bars nothing.",
        GivenUpForgottenWithSession: "A write that was given up bars nothing once its session is lost, too.",
    }
}

/// Which error is planted, in all of the program.
#[cfg(feature = "planted-errors")]
pub mod chosen {
    use core::sync::atomic::{AtomicU8, Ordering};

    use super::Planted;

    static CHOSEN: AtomicU8 = AtomicU8::new(0);

    /// Plants an error, or none.
    pub fn set(error: Option<Planted>) {
        CHOSEN.store(error.map_or(0, |error| error as u8 + 1), Ordering::SeqCst);
    }

    /// The one that is planted.
    #[must_use]
    pub fn get() -> Option<Planted> {
        let at = CHOSEN.load(Ordering::Relaxed).checked_sub(1)?;
        Planted::ALL.get(usize::from(at)).copied()
    }
}
