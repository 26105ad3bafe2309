//! Sizes and offsets of all structs, and the values of all constants, are those of the C headers: a C
//! program that the system's compiler makes prints its own, and every line must be the same.

#[macro_use]
#[rustfmt::skip]
mod fields;

use faclient_sys::*;
use std::fmt::Write;
use std::mem::{size_of, MaybeUninit};
use std::process::Command;

/// What C has to print, by a program that prints it, and what Rust has.
#[derive(Default)]
struct Lines {
    program: String,
    rust: String,
}

impl Lines {
    fn add(&mut self, c: &str, value: i64) {
        writeln!(self.program, "\tprintf(\"%s %lld\\n\", \"{c}\", (long long)({c}));").unwrap();
        writeln!(self.rust, "{c} {value}").unwrap();
    }
}

fn lines() -> Lines {
    let mut lines = Lines::default();
    macro_rules! add_structs {
        ($($name:ident: $($field:ident)*;)*) => { $({
            let value = MaybeUninit::<$name>::zeroed();
            let start = value.as_ptr();
            lines.add(concat!("sizeof(struct ", stringify!($name), ")"), size_of::<$name>() as i64);
            $(
                // SAFETY: the address of a field of a struct that is there; nothing is read.
                let field = unsafe { std::ptr::addr_of!((*start).$field) };
                let offset = field as usize - start as usize;
                lines.add(
                    concat!("offsetof(struct ", stringify!($name), ", ", stringify!($field), ")"),
                    offset as i64,
                );
                lines.add(
                    concat!("sizeof(((struct ", stringify!($name), " *)0)->", stringify!($field), ")"),
                    size_of_pointed(field) as i64,
                );
            )*
        })* };
    }
    macro_rules! add_constants {
        ($($name:ident)*) => { $(lines.add(stringify!($name), $name as i64);)* };
    }
    structs!(add_structs);
    constants!(add_constants);
    lines
}

fn size_of_pointed<T>(_: *const T) -> usize {
    size_of::<T>()
}

#[test]
fn layout_is_that_of_the_headers() {
    let lines = lines();
    let folder = std::env::temp_dir().join(format!("faclient-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(
        &source,
        format!(
            "#include <faclient.h>\n#include <stdio.h>\nint main(void)\n{{\n{}}}\n",
            lines.program
        ),
    )
    .unwrap();

    let flags = Command::new(std::env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into()))
        .args(["--cflags", "libfaclient"])
        .output()
        .expect("pkg-config");
    let flags = String::from_utf8(flags.stdout).unwrap();
    let compiled = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
        .args(flags.split_whitespace())
        .args(["-o".as_ref(), program.as_os_str(), source.as_os_str()])
        .output()
        .expect("the C compiler");
    let sentence = String::from_utf8_lossy(&compiled.stderr).into_owned();
    assert!(compiled.status.success(), "{sentence}");
    let done = Command::new(&program).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();

    let c = String::from_utf8(done.stdout).unwrap();
    assert_eq!(c.lines().count(), lines.rust.lines().count());
    for (c, rust) in c.lines().zip(lines.rust.lines()) {
        assert_eq!(c, rust, "the left is C's: run rust/faclient-sys/generate");
    }
    assert!(lines.rust.lines().count() > 250, "{}", lines.rust);
}

#[test]
fn version_is_that_of_the_library() {
    // SAFETY: a static string.
    let version = unsafe { std::ffi::CStr::from_ptr(fa_version()) };
    let expected = format!("{FA_VERSION_MAJOR}.{FA_VERSION_MINOR}.{FA_VERSION_PATCH}");
    assert_eq!(version.to_str().unwrap(), expected);
}
