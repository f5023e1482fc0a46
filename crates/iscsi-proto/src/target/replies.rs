//! What a task sends: R2Ts while it gathers data, then Data-In and its response.

use alloc::vec::Vec;

use super::tasks::{GOOD, Out, Task, TaskPdu};
use crate::{
    machine::{Payload, TaskId},
    negotiation::Params,
    pdu::{Bhs, DataIn, R2t, ScsiResponse},
};

pub(super) fn can_request(out: &Out, params: &Params) -> bool {
    out.fault.is_none()
        && out.requested < out.wanted
        && out.outstanding < params.max_outstanding_r2t
}

/// The tag of a task's R2T number `sequence`. It is never [`NO_TAG`]: places are few.
pub(super) fn tag(id: TaskId, sequence: u32) -> u32 {
    (sequence & 0x7fff) << 16 | u32::from(id.0)
}

/// The next R2T of a task.
pub(super) fn request(id: TaskId, task: &mut Task, params: &Params) -> Bhs {
    let out = &mut task.out;
    assert!(can_request(out, params), "{id:?} has nothing to ask for");
    let len = (out.wanted - out.requested).min(params.max_burst_len);
    let (ttt, r2t_sn) = (tag(id, out.r2t_sn), out.r2t_sn);
    let header =
        R2t { lun: task.lun, itt: task.itt, ttt, r2t_sn, offset: out.requested, len }.encode();
    if out.outstanding == 0 {
        out.sequence_end = out.requested + len;
    }
    out.requested += len;
    out.r2t_sn += 1;
    out.outstanding += 1;
    task.data_sn += 1;
    header
}

/// The next Data-In of a task, or its response.
pub(super) fn answer(id: TaskId, task: &mut Task, params: &Params) -> TaskPdu {
    let expected = u64::from(task.out.max.max(task.in_max));
    let overflow = task.total > expected;
    let underflow = task.total < expected;
    // Clamped: the field holds no more.
    let residual = u32::try_from(task.total.abs_diff(expected)).unwrap_or(u32::MAX);
    let left = task.in_len - task.in_sent;
    if left == 0 {
        let sense = sense_segment(&task.sense);
        let response = ScsiResponse {
            overflow,
            underflow,
            response: 0,
            status: task.status,
            itt: task.itt,
            exp_data_sn: task.data_sn,
            residual,
        };
        return TaskPdu { header: response.encode(), payload: sense, has_status: true };
    }
    // Data segments but the last of a sequence are multiples of four bytes.
    let in_burst = params.max_burst_len - task.in_sent % params.max_burst_len;
    let len = left.min(in_burst).min(params.max_send_len & !3);
    let end = len == left;
    let has_status = end && task.status == GOOD && task.sense.is_empty();
    let pdu = DataIn {
        last: end || len == in_burst,
        has_status,
        overflow: has_status && overflow,
        underflow: has_status && underflow,
        status: if has_status { task.status } else { 0 },
        itt: task.itt,
        data_sn: task.data_sn,
        offset: task.in_sent,
        residual: if has_status { residual } else { 0 },
    };
    let payload = Payload::Task { task: id, offset: task.in_sent, len };
    task.in_sent += len;
    task.data_sn += 1;
    TaskPdu { header: pdu.encode().with_data_len(len), payload, has_status }
}

/// Sense data with its length in front (RFC 7143, section 11.4.7).
fn sense_segment(sense: &[u8]) -> Payload {
    let Ok(len @ 1..) = u16::try_from(sense.len()) else { return Payload::None };
    let mut bytes = Vec::with_capacity(sense.len() + 2);
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(sense);
    Payload::Control(bytes)
}
