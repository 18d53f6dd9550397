//! A process of ours that outlives the program that started it: told from others that get its id later.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A process id with the time the process started, in ticks since the machine did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    started: u64,
}

impl Process {
    /// The process that has this id now.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything; the third field and all others follow the last one.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        // Ended, and only not yet waited for.
        if fields.first() == Some(&"Z") {
            return None;
        }
        Some(Self { pid, started: fields.get(19)?.parse().ok()? })
    }

    /// Whether this very process still runs.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Ends the process, which has to lead a group of its own, and what is left of the group: SIGTERM, then SIGKILL.
    ///
    /// Returns whether there was anything to end.
    pub fn stop(self) -> Result<bool> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
        // From here on the descriptor stands for one process, whatever becomes of the id.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(false) };
        if !self.is_alive() {
            return Ok(false);
        }
        for (signal, patience) in [(Signal::TERM, 10), (Signal::KILL, 5)] {
            // Fails if it ended meanwhile.
            let _ = pidfd_send_signal(&process, signal);
            let deadline = Instant::now() + Duration::from_secs(patience);
            while self.is_alive() && Instant::now() < deadline {
                sleep(Duration::from_millis(20));
            }
            if !self.is_alive() {
                // Its children, if it left any: a group's id is not given away while it has members.
                let _ = kill_process_group(pid, Signal::KILL);
                return Ok(true);
            }
        }
        Err(Error::other(format!("process {} does not end", self.pid)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_told_from_a_later_one_with_its_id() {
        let mut child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.is_alive());
        let earlier = Process { started: process.started - 1, ..process };
        assert!(!earlier.is_alive());
        assert!(!earlier.stop().unwrap());
        assert!(process.is_alive());
        assert!(process.stop().unwrap());
        assert!(!process.is_alive());
        child.wait().unwrap();
    }
}
