//! The process at the other end of a loopback connection, by way of `/proc`: who it is, and its death.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A connection as its caller's kernel socket has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket {
    /// The caller's end.
    pub(crate) peer: SocketAddr,
    /// The wire's end.
    pub(crate) local: SocketAddr,
}

/// A calling process.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) pid: u32,
    /// The Lambda function that the process was started as.
    pub(crate) function: Option<String>,
}

/// Finds the process that owns the caller's end. `likely` are process ids to look at first.
pub(crate) fn find(socket: Socket, likely: &[u32]) -> Option<Caller> {
    let pid = owner(inode(socket)?, likely)?;
    Some(Caller { pid, function: environment(pid, "AWS_LAMBDA_FUNCTION_NAME") })
}

/// Sends SIGKILL to the caller, if it descends from the process `root`, and returns its id.
pub(crate) fn kill(socket: Socket, root: Option<u32>) -> io::Result<u32> {
    let refuse = |why: String| io::Error::new(io::ErrorKind::PermissionDenied, why);
    let root = root.ok_or_else(|| refuse("the emulator's process id is not set".to_owned()))?;
    let inode = inode(socket).ok_or_else(|| refuse("the caller's socket is gone".to_owned()))?;
    let pid = owner(inode, &[]).ok_or_else(|| refuse("no process owns the caller's socket".to_owned()))?;
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let raw = raw.ok_or_else(|| refuse(format!("{pid} is no process id")))?;
    // From here on the descriptor stands for this very process; the checks come after it, so that they are
    // about the process that gets the signal even if ids are reused meanwhile.
    let process = pidfd_open(raw, PidfdFlags::empty())?;
    if pid == std::process::id() || !ancestors(pid).any(|ancestor| ancestor == root) {
        return Err(refuse(format!("process {pid} does not descend from the emulator, process {root}")));
    }
    if !owns(pid, inode) {
        return Err(refuse(format!("process {pid} has closed the socket")));
    }
    pidfd_send_signal(process, Signal::KILL)?;
    Ok(pid)
}

/// The inode of the caller's end.
fn inode(socket: Socket) -> Option<u64> {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .find_map(|table| table.lines().find_map(|line| inode_of_line(line, socket)))
}

/// Reads `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …`.
fn inode_of_line(line: &str, socket: Socket) -> Option<u64> {
    let mut columns = line.split_ascii_whitespace();
    let (local, remote) = (columns.nth(1)?, columns.next()?);
    if !(is_address(local, socket.peer) && is_address(remote, socket.local)) {
        return None;
    }
    let inode = columns.nth(6)?.parse().ok()?;
    // Zero once the process has closed it.
    (inode != 0).then_some(inode)
}

/// Whether `0100007F:1F90` is that address. An IPv4 address in the IPv6 table ends in the same digits.
fn is_address(hex: &str, address: SocketAddr) -> bool {
    let Some((ip, port)) = hex.split_once(':') else { return false };
    let SocketAddr::V4(address) = address else { return false };
    let number = u32::from_ne_bytes(address.ip().octets());
    u16::from_str_radix(port, 16) == Ok(address.port()) && ip.ends_with(&format!("{number:08X}"))
}

/// The process that has the socket open. Where a child inherited it, the parent.
fn owner(inode: u64, likely: &[u32]) -> Option<u32> {
    let others = || {
        let entries = fs::read_dir("/proc").ok().into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    };
    let mut pid = likely.iter().copied().find(|&pid| owns(pid, inode)).or_else(|| {
        // Young processes first: they are the ones that have not been seen yet.
        let mut others: Vec<u32> = others().collect();
        others.sort_unstable_by(|a, b| b.cmp(a));
        others.into_iter().find(|&pid| owns(pid, inode))
    })?;
    while let Some(parent) = parent(pid).filter(|&parent| owns(parent, inode)) {
        pid = parent;
    }
    Some(pid)
}

fn owns(pid: u32, inode: u64) -> bool {
    let target = PathBuf::from(format!("socket:[{inode}]"));
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok().into_iter().flatten().flatten();
    descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|link| link == target)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; state and parent follow the last one.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(parent(pid), |&pid| parent(pid))
}

fn environment(pid: u32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0).filter_map(|it| std::str::from_utf8(it).ok());
    variables.find_map(|variable| Some(variable.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_socket_table() {
        let socket = Socket {
            peer: SocketAddr::from(([127, 0, 0, 1], 0xA001)),
            local: SocketAddr::from(([127, 0, 0, 1], 0x1F90)),
        };
        for (line, inode) in [
            (
                "1: 0100007F:A001 0100007F:1F90 01 00000000:00000000 00:00000000 00000000 0 0 4711 1 0",
                Some(4711),
            ),
            ("1: 0100007F:A001 0100007F:1F90 06 00000000:00000000 03:00000000 00000000 0 0 0 3 0", None),
            ("1: 0100007F:1F90 0100007F:A001 01 00000000:00000000 00:00000000 00000000 0 0 4712 1 0", None),
            (
                "1: 0000000000000000FFFF00000100007F:A001 0000000000000000FFFF00000100007F:1F90 01 \
                 00000000:00000000 00:00000000 00000000 0 0 4713 1 0",
                Some(4713),
            ),
            ("sl local_address rem_address st", None),
        ] {
            assert_eq!(inode_of_line(line, socket), inode, "{line}");
        }
    }

    #[test]
    fn this_process_has_a_parent() {
        assert!(ancestors(std::process::id()).any(|pid| pid == 1));
    }
}
