//! `tessl devices`

use crate::error::Result;
use crate::ui;
use serde_json::json;
use tessl::{Device, DeviceInfo};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let devices = Device::enumerate();
    if args.json {
        return ui::json(&json!({ "schema": 1, "best": Device::best().to_string(), "devices": devices }));
    }
    ui::out(listing(&devices))?;
    let default = match std::env::var("TESSL_DEVICE") {
        Ok(name) if !name.is_empty() => format!("{name}, as TESSL_DEVICE says"),
        _ => format!("{} (TESSL_DEVICE or --device choose another)", Device::best()),
    };
    ui::out(format_args!("\ndefault: {default}"))
}

/// One line per device.
pub(crate) fn listing(devices: &[DeviceInfo]) -> String {
    let mut table = ui::table(["device", "state", "name", "memory", "driver"]);
    let mut notes = String::new();
    for d in devices {
        let memory = if d.memory_bytes > 0 { ui::bytes(d.memory_bytes) } else { "-".to_owned() };
        let driver = if d.driver.is_empty() { "-" } else { &d.driver };
        let state = if d.missing.is_none() { "ready" } else { "not usable" };
        table.add_row([&d.id, state, &d.name, &memory, driver]);
        if let Some(missing) = &d.missing {
            let help = d.help.as_ref().map_or_else(String::new, |help| format!("; {help}"));
            notes += &format!("\n {}: {missing}{help}", d.id);
        }
    }
    table.trim_fmt() + &notes
}
