//! The `tessl` command. `tessl --help` tells what it does.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    tessl_cli::main()
}
