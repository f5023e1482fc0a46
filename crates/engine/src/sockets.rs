//! Reading from sockets without asking twice.

use std::io::{self, IoSliceMut};

use tokio::{io::Interest, net::TcpStream};

/// What readv(2) takes.
const PLACES_MAX: usize = 1024;

/// Reads what is there into `places`, one after the other; 0 at the end of the stream, `None` when nothing is there.
///
/// A socket that gave less than there was room for has nothing left (epoll(7), questions and answers, 9): it is not asked
/// again before more comes, which saves a call of the kernel for each burst. A peer that sends urgent data makes a read end
/// before the rest, which then waits until that peer sends more.
///
/// # Panics
/// When there is no room, or more places than one call of the kernel takes.
///
/// # Errors
/// As the socket says.
pub(crate) fn read(socket: &TcpStream, places: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
    let room: usize = places.iter().map(|place| place.len()).sum();
    assert!(room > 0 && places.len() <= PLACES_MAX, "{room} bytes in {} places", places.len());
    let mut count = None;
    let end = socket.try_io(Interest::READABLE, || {
        let read = rustix::io::readv(socket, places)?;
        count = Some(read);
        // The end of the stream is told again as often as it is asked for.
        if 0 < read && read < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    match end {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt, net::TcpListener};

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (client, accepted) =
            tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (client, (socket, _)) = (client.unwrap(), accepted.unwrap());
        client.set_nodelay(true).unwrap();
        // A new socket is taken for ready before anything came.
        assert_eq!(read_into(&socket, &mut [0; 8]), None);
        (client, socket)
    }

    fn read_into(socket: &TcpStream, place: &mut [u8]) -> Option<usize> {
        read(socket, &mut [IoSliceMut::new(place)]).unwrap()
    }

    #[tokio::test]
    async fn what_comes_after_a_short_read_is_seen() {
        let (mut sender, socket) = pair().await;
        let mut place = [0; 64];
        for round in 0..1000_u32 {
            assert_eq!(read_into(&socket, &mut place), None, "round {round}");
            sender.write_all(&round.to_le_bytes()).await.unwrap();
            socket.readable().await.unwrap();
            assert_eq!(read_into(&socket, &mut place), Some(4));
            assert_eq!(place[..4], round.to_le_bytes());
        }
    }

    #[tokio::test]
    async fn what_came_just_after_a_short_read_wakes_who_waits() {
        let (mut sender, socket) = pair().await;
        sender.write_all(b"one").await.unwrap();
        socket.readable().await.unwrap();
        let mut place = [0; 64];
        assert_eq!(read_into(&socket, &mut place), Some(3));
        // The runtime has not heard of this when the next reading is tried.
        sender.write_all(b"three").await.unwrap();
        assert_eq!(read_into(&socket, &mut place), None);
        socket.readable().await.unwrap();
        assert_eq!(read_into(&socket, &mut place), Some(5));
    }

    #[tokio::test]
    async fn a_full_read_is_followed_by_another_one_and_the_end_is_told_again() {
        let (mut sender, socket) = pair().await;
        sender.write_all(&[7; 100]).await.unwrap();
        drop(sender);
        socket.readable().await.unwrap();
        let mut place = [0; 64];
        assert_eq!(read_into(&socket, &mut place), Some(64));
        assert_eq!(read_into(&socket, &mut place), Some(36));
        for _ in 0..2 {
            socket.readable().await.unwrap();
            assert_eq!(read_into(&socket, &mut place), Some(0));
        }
    }

    #[tokio::test]
    async fn a_reset_connection_is_an_error() {
        let (client, socket) = pair().await;
        socket2::SockRef::from(&client).set_linger(Some(std::time::Duration::ZERO)).unwrap();
        drop(client);
        socket.readable().await.unwrap();
        let error = read(&socket, &mut [IoSliceMut::new(&mut [0; 8])]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
