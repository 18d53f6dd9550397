//! The wire from the shell: `cdkd-wire --upstream 127.0.0.1:4566 --port 4567`, then `curl` under `/_wire/`.

use std::io::{self, Write as _};
use std::net::SocketAddr;

use cdkd_wire::Wire;
use clap::Parser;

/// Proxies calls of AWS to an emulator on loopback; controlled under `/_wire/`.
#[derive(Parser)]
struct Arguments {
    /// Port to listen on, 0 for any that is free
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Address of the emulator
    #[arg(long)]
    upstream: SocketAddr,
    /// Process id of the emulator, whose descendants may be killed; later: PUT /_wire/emulator {"pid": N}
    #[arg(long)]
    pid: Option<u32>,
}

fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    let wire = Wire::start(arguments.port, arguments.upstream, arguments.pid)?;
    writeln!(io::stdout(), "{}", wire.url())?;
    wire.join();
    Ok(())
}
