//! An initiator made of bytes: everything that it sends can be cut, bent, or held back.

use std::{io, net::SocketAddr};

use netraid_iscsi_proto::{
    pdu::{Bhs, DataOut, LoginRequest, LogoutReason, LogoutRequest, LunField, NO_TAG, ScsiCommand},
    serial::Serial,
    text,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use crate::common::NAME;

/// Bytes of one PDU: header, data, padding.
pub(crate) fn pdu(bhs: Bhs, data: &[u8]) -> Vec<u8> {
    let mut bytes = bhs.with_data_len(u32::try_from(data.len()).unwrap()).0.to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A login of one request, for targets that want no secret.
pub(crate) fn login(isid: u16) -> Vec<u8> {
    let [high, low] = isid.to_be_bytes();
    let request = LoginRequest {
        transit: true,
        more: false,
        current_stage: 1,
        next_stage: 3,
        version_max: 0,
        version_min: 0,
        isid: [0x80, 0, 0, 0, high, low],
        tsih: 0,
        itt: 0,
        cid: 1,
    };
    let mut keys = Vec::new();
    for (key, value) in [("InitiatorName", "iqn.2026-01.org.example:raw"), ("TargetName", NAME)] {
        text::push(&mut keys, key, value);
    }
    let mut bhs = request.encode();
    bhs.stamp_command(Serial(1), Serial(0));
    pdu(bhs, &keys)
}

/// A command; its data goes with it.
pub(crate) fn command(cmd_sn: u32, cdb: &[u8], expected_len: u32, data: Option<&[u8]>) -> Vec<u8> {
    let mut padded = [0; 16];
    padded[..cdb.len()].copy_from_slice(cdb);
    let command = ScsiCommand {
        immediate: false,
        last: true,
        read: data.is_none() && expected_len > 0,
        write: data.is_some(),
        attribute: 1,
        lun: LunField::from_number(0),
        itt: cmd_sn,
        expected_len,
        cdb: padded,
    };
    let mut bhs = command.encode();
    bhs.stamp_command(Serial(cmd_sn), Serial(0));
    pdu(bhs, data.unwrap_or_default())
}

pub(crate) fn data_out(itt: u32, ttt: u32, offset: u32, data: &[u8]) -> Vec<u8> {
    let lun = LunField::from_number(0);
    pdu(DataOut { last: true, lun, itt, ttt, data_sn: 0, offset }.encode(), data)
}

pub(crate) fn logout(cmd_sn: u32) -> Vec<u8> {
    let reason = LogoutReason::CloseSession;
    let request = LogoutRequest { immediate: false, reason, itt: 0xbeef, cid: 1 };
    let mut bhs = request.encode();
    bhs.stamp_command(Serial(cmd_sn), Serial(0));
    pdu(bhs, &[])
}

/// READ (10) or WRITE (10).
pub(crate) fn transfer(opcode: u8, lba: u8, blocks: u16) -> [u8; 10] {
    let [high, low] = blocks.to_be_bytes();
    [opcode, 0, 0, 0, 0, lba, 0, high, low, 0]
}

/// A login, the command that takes the unit attention, a write, a read, and a logout.
pub(crate) fn conversation(isid: u16) -> Vec<u8> {
    let mut bytes = login(isid);
    bytes.extend(command(1, &[0; 6], 0, None));
    bytes.extend(command(2, &transfer(0x2a, 9, 1), 512, Some(&[0x5a; 512])));
    bytes.extend(command(3, &transfer(0x28, 9, 1), 512, None));
    bytes.extend(logout(4));
    bytes
}

/// Connects from an address of this host: 127.0.0.`source`.
pub(crate) async fn connect_from(source: u8, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, source], 0)))?;
    socket.connect(address).await
}

/// Reads one PDU; its header and data.
pub(crate) async fn receive(stream: &mut TcpStream) -> io::Result<(Bhs, Vec<u8>)> {
    let mut bhs = Bhs([0; 48]);
    stream.read_exact(&mut bhs.0).await?;
    let len = usize::try_from(bhs.data_len()).unwrap();
    let mut data = vec![0; len.next_multiple_of(4)];
    stream.read_exact(&mut data).await?;
    data.truncate(len);
    Ok((bhs, data))
}

/// Logs in, and takes the unit attention.
pub(crate) async fn session(source: u8, address: SocketAddr, isid: u16) -> io::Result<TcpStream> {
    let mut stream = connect_from(source, address).await?;
    stream.write_all(&login(isid)).await?;
    receive(&mut stream).await?;
    stream.write_all(&command(1, &[0; 6], 0, None)).await?;
    receive(&mut stream).await?;
    Ok(stream)
}

/// Reads until the peer has closed; how many bytes came.
pub(crate) async fn drain(stream: &mut TcpStream) -> usize {
    let (mut sink, mut total) = ([0; 4096], 0);
    while let Ok(len @ 1..) = stream.read(&mut sink).await {
        total += len;
    }
    total
}

/// The reserved tag: data that nobody asked for.
pub(crate) const UNASKED: u32 = NO_TAG;
