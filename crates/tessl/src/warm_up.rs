//! Kernels compiled ahead of their first use, side by side.

use crate::error::Result;
use crate::plan::Desc;
use crate::runtime::GpuRuntime;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that compile kernels at the same time.
const WARM_UP_THREADS: usize = 8;

/// The next item that no other thread has taken, with its number.
fn take_next<'a, T>(next: &AtomicUsize, items: &'a [T]) -> Option<(usize, &'a T)> {
    let i = next.fetch_add(1, Ordering::Relaxed);
    Some((i, items.get(i)?))
}

impl GpuRuntime {
    /// Plans these problems and compiles their kernels now, so that the first call does not have to. Kernels compile side
    /// by side, on up to eight threads.
    ///
    /// # Errors
    /// What planning or compiling reports, of the first problem in the list that has an error; the others are prepared.
    pub fn warm_up(&self, problems: &[Desc]) -> Result<()> {
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(WARM_UP_THREADS);
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut first = Ok(());
            while let Some((i, desc)) = take_next(&next, problems) {
                // Numbers only grow, so the first error of a thread is its earliest.
                if let (Err(error), Ok(())) = (self.prepare(desc), &first) {
                    first = Err((i, error));
                }
            }
            first
        };
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let helpers: Vec<_> = (1..workers.min(problems.len())).map(|_| scope.spawn(worker)).collect();
            let own = worker();
            let theirs = helpers.into_iter().map(|h| h.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
            theirs.chain([own]).collect()
        });
        let errors = outcomes.into_iter().filter_map(Result::err);
        errors.min_by_key(|(i, _)| *i).map_or(Ok(()), |(_, error)| Err(error))
    }
}

#[cfg(test)]
mod tests {
    use crate::gemm::Gemm;
    use crate::plan::Desc;
    use crate::{BufferKind, DType, Device, GpuRuntime};

    #[test]
    fn every_problem_is_prepared_and_the_first_error_is_the_answer() {
        let rt = GpuRuntime::with_device(&Device::cpu()).unwrap();
        let gemm = |dtype: DType, n: usize| {
            let [a, b, c] = [[3, 5], [5, n], [3, n]].map(|shape| rt.zeros(dtype, &shape, BufferKind::Cold).unwrap());
            Gemm::new(&a, &b, &c).desc().unwrap()
        };
        rt.warm_up(&[]).unwrap();
        assert_eq!(rt.pipeline_count(), 0);
        let mut problems: Vec<Desc> = (1..100).map(|n| Desc::Gemm(gemm(DType::F32, n))).collect();
        problems.push(Desc::Gemm(gemm(DType::Bf16, 7)));
        // No kernel stores these types; of two errors the earlier one is told.
        for (at, output) in [(70, DType::U32), (9, DType::U8)] {
            problems[at] = Desc::Gemm(crate::gemm::GemmDesc { output, ..gemm(DType::F32, at) });
        }
        let error = rt.warm_up(&problems).unwrap_err().to_string();
        assert!(error.contains("u8") && !error.contains("u32"), "{error}");
        let prepared = rt.pipeline_count();
        assert!(prepared >= 2, "the rest is prepared");
        problems.retain(|p| !matches!(p, Desc::Gemm(d) if !d.output.is_float()));
        rt.warm_up(&problems).unwrap();
        assert_eq!(rt.pipeline_count(), prepared, "nothing was left to compile");
    }
}
