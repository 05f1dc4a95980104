//! `tessl devices`

use crate::error::Result;
use crate::ui::{self, Paint};
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
    ui::out(format_args!("\ndefault: {} (TESSL_DEVICE or --device choose another)", Device::best()))
}

/// One line per device.
pub(crate) fn listing(devices: &[DeviceInfo]) -> String {
    let mut table = ui::table(["device", "name", "memory", "driver", "state"]);
    for d in devices {
        let memory = if d.memory_bytes > 0 { ui::bytes(d.memory_bytes) } else { "-".to_owned() };
        let driver = if d.driver.is_empty() { "-" } else { &d.driver };
        table.add_row([&d.id, &d.name, &memory, driver, &state(d)]);
    }
    table.trim_fmt()
}

fn state(d: &DeviceInfo) -> String {
    match (&d.missing, &d.help) {
        (None, _) => Paint::Green.text("ready"),
        (Some(missing), None) => format!("not usable: {missing}"),
        (Some(missing), Some(help)) => format!("not usable: {missing}; {help}"),
    }
}
