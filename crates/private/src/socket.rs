//! Unix sockets that their owner alone can connect to.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{
            fs::FileTypeExt as _,
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
};

use rustix::fs::Mode;

/// Listens at a path, for this user and root alone: others can connect at no time, whatever the umask
/// is. A socket that a process left there which is dead now is replaced; nothing else is. The listener
/// does not block.
///
/// # Errors
/// What the system says: that the path is in use, or cannot be made.
pub fn listen(path: &Path, backlog: i32) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let connected = UnixStream::connect(path);
    let is_refused = connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if is_socket && is_refused {
        fs::remove_file(path)?;
    }
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    // The mode that the socket has before it is bound is the mode of its path.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.set_nonblocking(true)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    socket.listen(backlog)?;
    Ok(OwnedFd::from(socket).into())
}
