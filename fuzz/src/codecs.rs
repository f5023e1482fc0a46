//! Everything that is read from bytes which somebody else wrote: PDUs, texts, addresses, SCSI
//! parameter data, labels, extents, the control socket's documents. No input panics; what was read
//! and can be written again means the same; nothing that is shown has a secret in it.

use netraid_block::{Buf, SgList, TargetUri, UriOptions, extents::Extents, redact_addresses};
use netraid_engine::control::{ArrayStatus, ControlRequest};
use netraid_iscsi_proto::{
    negotiation::{Negotiation, SessionType, Wishes},
    pdu::{
        AsyncMessage, Bhs, DataIn, DataOut, LoginRequest, LoginResponse, LogoutRequest,
        LogoutResponse, LunField, NopIn, NopOut, R2t, Reject, ScsiCommand, ScsiResponse,
        TaskRequest, TaskResponse, TextRequest, TextResponse,
    },
    text,
};
use netraid_raid::{label::Label, regions::Region, written::WrittenBits};
use netraid_scsi::{
    Sense,
    capacity::Capacity,
    cdb,
    inquiry::{self, StandardInquiry},
    limits::{BlockLimits, Provisioning},
    mode::ModeData,
    sense::SenseFormat,
    unit::{decode_lun, encode_lun},
};

/// Takes an input; panics on a finding.
pub fn run(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 10 {
        0 => headers(bytes),
        1 => texts(bytes),
        2 => offers(bytes),
        3 => addresses(bytes),
        4 => commands(bytes),
        5 => parameter_data(bytes),
        6 => labels(bytes),
        7 => written_bits(bytes),
        8 => answers_about_extents(bytes),
        _ => documents(bytes),
    }
}

/// Reading, writing and reading again gives the same.
fn stable<T: PartialEq + std::fmt::Debug>(
    bhs: &Bhs,
    parse: impl Fn(&Bhs) -> T,
    encode: impl Fn(&T) -> Bhs,
) {
    let first = parse(bhs);
    let encoded = encode(&first);
    assert_eq!(parse(&encoded), first);
    assert_eq!(encode(&parse(&encoded)), encoded);
}

fn headers(bytes: &[u8]) {
    let Some((head, _)) = bytes.split_first_chunk::<48>() else { return };
    let bhs = Bhs(*head);
    assert!(bhs.data_len() < 1 << 24 && bhs.ahs_len() <= 1020);
    let _ = (bhs.opcode(), bhs.immediate(), format!("{bhs:?}"));
    stable(&bhs, NopOut::parse, NopOut::encode);
    stable(&bhs, ScsiCommand::parse, ScsiCommand::encode);
    stable(&bhs, TaskRequest::parse, TaskRequest::encode);
    stable(&bhs, LoginRequest::parse, LoginRequest::encode);
    stable(&bhs, TextRequest::parse, TextRequest::encode);
    stable(&bhs, DataOut::parse, DataOut::encode);
    stable(&bhs, LogoutRequest::parse, LogoutRequest::encode);
    stable(&bhs, NopIn::parse, NopIn::encode);
    stable(&bhs, ScsiResponse::parse, ScsiResponse::encode);
    stable(&bhs, TaskResponse::parse, TaskResponse::encode);
    stable(&bhs, LoginResponse::parse, LoginResponse::encode);
    stable(&bhs, TextResponse::parse, TextResponse::encode);
    stable(&bhs, DataIn::parse, DataIn::encode);
    stable(&bhs, LogoutResponse::parse, LogoutResponse::encode);
    stable(&bhs, R2t::parse, R2t::encode);
    stable(&bhs, AsyncMessage::parse, AsyncMessage::encode);
    stable(&bhs, Reject::parse, Reject::encode);
    if let Some(number) = bhs.lun().number() {
        assert_eq!(LunField::from_number(number).number(), Some(number));
        assert_eq!(decode_lun(bhs.lun().0), Some(number), "two rooms read one field differently");
    }
    if let Some(number) = decode_lun(bhs.lun().0) {
        assert_eq!(decode_lun(encode_lun(number)), Some(number));
    }
}

fn texts(bytes: &[u8]) {
    let mut collector = text::Collector::default();
    for part in bytes.chunks(1000) {
        if collector.add(part).is_err() {
            break;
        }
    }
    let whole = collector.take();
    assert!(whole.len() <= text::TEXT_LEN_MAX);
    if let Ok(pairs) = text::parse(&whole) {
        let mut again = Vec::new();
        pairs.iter().for_each(|(key, value)| text::push(&mut again, key, value));
        assert_eq!(text::parse(&again).expect("it was read before"), pairs);
    }
    if let Ok(value) = std::str::from_utf8(bytes) {
        let _ = (text::number(value), text::boolean(value));
        if let Some(binary) = text::binary(value) {
            assert!(binary.len() <= 2048);
            assert_eq!(text::binary(&text::to_hex(&binary)), Some(binary));
        }
    }
}

/// Keys through a negotiation, as responder or as originator: what holds afterwards is in range.
fn offers(bytes: &[u8]) {
    let Some((mode, bytes)) = bytes.split_first() else { return };
    let session = if mode & 1 == 0 { SessionType::Normal } else { SessionType::Discovery };
    let wishes = Wishes { initial_r2t: mode & 2 != 0, ..Wishes::default() };
    let mut negotiation = Negotiation::new(wishes);
    let mut out = Vec::new();
    let originates = mode & 4 != 0;
    if originates {
        negotiation.offer(session, &mut out);
    }
    for pair in text::pairs(bytes).take(128) {
        let Ok((key, value)) = pair else { break };
        let result = if originates {
            negotiation.accept(key, value, &mut out)
        } else {
            negotiation.answer(key, value, session, &mut out)
        };
        if result.is_err() {
            break;
        }
    }
    negotiation.declare(&mut out);
    assert!(out.len() <= 128 * 4096 + bytes.len() * 64);
    let params = negotiation.params();
    for len in
        [params.max_recv_len, params.max_send_len, params.max_burst_len, params.first_burst_len]
    {
        assert!((512..1 << 24).contains(&len), "{params:?}");
    }
    assert!((1..=65535).contains(&params.max_outstanding_r2t), "{params:?}");
}

fn addresses(bytes: &[u8]) {
    let Ok(address) = std::str::from_utf8(bytes) else { return };
    let _ = redact_addresses(address);
    match TargetUri::parse(address) {
        Ok(uri) => {
            let shown = format!("{uri} {uri:?}");
            // By chance the rest of it may contain the secret; it never depends on it.
            let other = uri.secret.as_ref().map(|_| "another".to_string());
            let target = uri.options.target_secret.as_ref().map(|_| "another".to_string());
            let options = UriOptions { target_secret: target, ..uri.options.clone() };
            let other = TargetUri { secret: other, options, ..uri.clone() };
            assert_eq!(shown, format!("{other} {other:?}"), "a secret is shown");
            if let Ok(again) = TargetUri::parse(&uri.to_string()) {
                assert_eq!((again.host, again.port), (uri.host, uri.port));
                assert_eq!((again.target, again.lun), (uri.target, uri.lun));
            }
        }
        Err(error) => {
            let _ = error.to_string();
        }
    }
}

fn commands(bytes: &[u8]) {
    if let Err(sense) = cdb::parse(bytes) {
        for format in [SenseFormat::Fixed, SenseFormat::Descriptor] {
            let decoded = Sense::decode(&sense.encode(format)).expect("our own sense data");
            assert_eq!((decoded.key, decoded.additional), (sense.key, sense.additional));
        }
    }
    let _ = cdb::kind(bytes.first().copied().unwrap_or(0));
}

/// What an initiator reads of a hostile logical unit.
fn parameter_data(bytes: &[u8]) {
    if let Some(sense) = Sense::decode(bytes) {
        let _ = sense.to_string();
        let _ = Sense::decode(&sense.encode(SenseFormat::Descriptor));
    }
    let _ = StandardInquiry::decode(bytes);
    let _ = inquiry::vpd_body(bytes, bytes.get(1).copied().unwrap_or(0));
    for designator in inquiry::decode_designators(bytes).unwrap_or_default() {
        let _ = format!("{designator:?}");
    }
    let _ = (inquiry::decode_supported_pages(bytes), inquiry::decode_serial(bytes));
    let _ = (BlockLimits::decode(bytes), Provisioning::decode(bytes), ModeData::decode_6(bytes));
    let _ = (Capacity::decode_10(bytes), Capacity::decode_16(bytes));
}

fn labels(bytes: &[u8]) {
    let mut label = vec![0; 4096];
    let len = bytes.len().min(4096);
    label[..len].copy_from_slice(&bytes[..len]);
    for copy in [0, 1] {
        if let Ok(label) = Label::decode(&label, copy) {
            let again = Label::decode(&label.encode(copy), copy).expect("our own label");
            assert_eq!(again, label);
        }
    }
    let _ = Label::decode(bytes, 0);
}

fn written_bits(bytes: &[u8]) {
    let Some((uuid, rest)) = bytes.split_first_chunk::<16>() else { return };
    let Some((numbers, page)) = rest.split_first_chunk::<4>() else { return };
    let stripes = u64::from(u16::from_le_bytes([numbers[0], numbers[1]]));
    let offset = u64::from(u16::from_le_bytes([numbers[2], numbers[3]]));
    let mut written = WrittenBits::new(*uuid, stripes);
    let region = Region { offset: 1 << 20, len: 1 << 20 };
    let mut image = vec![0; 4096];
    let len = page.len().min(4096);
    image[..len].copy_from_slice(&page[..len]);
    written.offer(&region, region.offset + offset * 512, &image);
    written.offer(&region, region.offset + offset * 512, page);
    let _ = written.first_missing();
}

fn answers_about_extents(bytes: &[u8]) {
    let Some((len, answer)) = bytes.split_first_chunk::<8>() else { return };
    let len = u64::from_le_bytes(*len);
    let list: SgList =
        if answer.is_empty() { SgList::new() } else { Buf::copy_from(answer).into() };
    if let Ok(extents) = Extents::decode(&list, len) {
        assert!(extents.len() <= len);
        let again = Extents::decode(&extents.encode(), len).expect("our own answer");
        assert_eq!(again, extents);
    }
}

fn documents(bytes: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<ControlRequest>(bytes) {
        let text = serde_json::to_string(&request).expect("it has a form");
        let again: ControlRequest = serde_json::from_str(&text).expect("our own document");
        assert_eq!(again, request);
    }
    let _ = serde_json::from_slice::<ArrayStatus>(bytes);
}
