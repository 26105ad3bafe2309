//! What the tests share: daemons, processes and JSON.
#![allow(dead_code)] // no test uses all of it

pub mod json;

use faclient::{Client, Options};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon of its own for a test; ends with its last client.
pub fn private() -> Client {
    let options = Options::new().private().name("rust test").connect_timeout(PATIENCE);
    options.connect().expect("FAD_DAEMON names the daemon")
}

/// Waits until it is true.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it never came so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A daemon whose pool outlives it: `fad --supervise`.
pub struct Supervised {
    supervisor: Child,
    folder: PathBuf,
}

impl Supervised {
    pub fn start(name: &str) -> Supervised {
        let folder = std::env::temp_dir().join(format!("faclient-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("fad.conf"), "[pool]\nbytes = 64M\n").unwrap();
        let supervisor = Command::new(std::env::var_os("FAD_DAEMON").expect("FAD_DAEMON"))
            .args(["--supervise", "--log-level", "error", "--socket"])
            .arg(folder.join("fad.sock"))
            .arg("--config")
            .arg(folder.join("fad.conf"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let supervised = Supervised { supervisor, folder };
        eventually("the daemon serves", || supervised.options().connect().is_ok());
        supervised
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.join("fad.sock")
    }

    pub fn options(&self) -> Options {
        Options::new().socket(self.socket()).reconnect_timeout(PATIENCE).connect_timeout(PATIENCE)
    }

    /// Kills the daemon; its supervisor starts another.
    pub fn kill(&self) {
        let pid = self.options().connect().unwrap().info().unwrap().pid;
        let killed = Command::new("kill").arg("-9").arg(pid.to_string()).status().unwrap();
        assert!(killed.success());
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.supervisor.id().to_string()).status();
        let _ = self.supervisor.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// If this variable is set, the test runs as the second process of a test with two.
const SOCKET: &str = "FACLIENT_TEST_SOCKET";

/// Runs a test of this program again, in another process that is to use this daemon.
pub fn run_other(test: &str, socket: &Path) {
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(SOCKET, socket)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("1 passed"), "{said}");
}

/// The client of the other process; `None` in the test itself.
pub fn other() -> Option<Client> {
    let socket = std::env::var_os(SOCKET)?;
    Some(Options::new().socket(socket).connect_timeout(PATIENCE).connect().unwrap())
}
