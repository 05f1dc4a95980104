//! The GEMM sweep.

use super::args::Settings;
use super::report::Limits;
use super::{Data, GemmArgs, Report, Rotation, Row, measure};
use crate::error::Result;
use tessl::plan::{Desc, plan};
use tessl::{DeviceKind, GpuRuntime};

/// Measures every case, telling each finished row by `show`; `begin` is told the device first.
///
/// # Errors
/// `Usage` for bad arguments, `Failed` for a wrong result, and what the library reports.
pub fn sweep(args: &GemmArgs, begin: impl FnOnce(&GpuRuntime), mut show: impl FnMut(&Row)) -> Result<Report> {
    let Settings { rt, cases, modes, warmup, iters, threads, lane } = args.settings()?;
    begin(&rt);
    let on_cpu = rt.info().kind == DeviceKind::Cpu;
    let limits = Limits { read_gbps: on_cpu.then(|| super::limits::read_rate(threads) / 1e9) };
    let data = Data::new();
    let mut rows = Vec::new();
    for case in &cases {
        let mut work = Rotation::new(&rt, case, &data, u64::MAX)?;
        let desc = work.call(0).desc()?;
        let kernel = plan(&Desc::Gemm(desc), rt.profile())?.kernel.name;
        for &mode in &modes {
            work.poison()?;
            let samples = measure(&rt, &mut work, mode, warmup, iters)?;
            work.check(work.last())?;
            let (kernel, lane) = (kernel.to_string(), lane.clone());
            let row = Row { kernel, lane, threads, copies: work.copies(), ..Row::new(case, mode, &samples, &limits) };
            show(&row);
            rows.push(row);
        }
    }
    let info = rt.info();
    Ok(Report {
        schema: 1,
        device: info.name.clone(),
        driver: info.driver.clone(),
        commit: None,
        version: env!("CARGO_PKG_VERSION"),
        limits,
        rows,
        summary: Vec::new(),
    })
}
