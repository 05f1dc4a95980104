//! Cases and the runner.

use crate::env::{Env, Outcome};
use crate::report::{Entry, Report};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

type Body = Box<dyn Fn(&Env) -> Outcome + Send + Sync>;

/// One thing to check.
pub struct Case {
    /// Unique name, by path: `gemm/layouts/bf16_f32/tensorops`.
    pub name: String,
    /// Operation or area: `gemm`, `rms_norm`, `tensor`, `api`.
    pub op: &'static str,
    /// Multiply-adds that the case costs at full size. Cases that can shrink do so; others are skipped when it passes
    /// the budget.
    pub cost_mac: u64,
    /// Whether the case cuts its problems to the budget.
    pub shrinks: bool,
    /// `quick` (a tenth of the suite, for sanitizers), `model` (model-sized), `big` (gigabytes of memory), ..
    pub tags: &'static [&'static str],
    body: Body,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("cost_mac", &self.cost_mac).finish_non_exhaustive()
    }
}

impl Case {
    /// A case that cuts its problems to the budget.
    pub fn new(
        name: impl Into<String>,
        op: &'static str,
        body: impl Fn(&Env) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Case { name: name.into(), op, cost_mac: 0, shrinks: true, tags: &[], body: Box::new(body) }
    }

    /// A case of fixed size.
    pub fn fixed(
        name: impl Into<String>,
        op: &'static str,
        cost_mac: u64,
        body: impl Fn(&Env) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Case { cost_mac, shrinks: false, ..Case::new(name, op, body) }
    }

    /// The same case with tags.
    pub fn tagged(mut self, tags: &'static [&'static str]) -> Self {
        self.tags = tags;
        self
    }

    /// Whether the case carries this tag.
    pub fn is(&self, tag: &str) -> bool {
        self.tags.contains(&tag)
    }

    /// Runs the case; a panic is a failure.
    pub fn run(&self, env: &Env) -> Outcome {
        if !self.shrinks && self.cost_mac > env.budget {
            return Outcome::Skipped(format!("costs {} multiply-adds, the budget is {}", self.cost_mac, env.budget));
        }
        catch_unwind(AssertUnwindSafe(|| (self.body)(env))).unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("(no text)");
            Outcome::Failed(format!("panicked: {text}"))
        })
    }
}

/// A list of cases.
#[derive(Debug)]
pub struct Suite {
    /// The cases in order.
    pub cases: Vec<Case>,
}

impl Suite {
    /// Every case.
    pub fn all() -> Self {
        let mut cases = crate::gemm::cases();
        cases.extend(crate::norm::cases());
        cases.extend(crate::mlp::cases());
        cases.extend(crate::movement::cases());
        cases.extend(crate::experts::cases());
        cases.extend(crate::elementwise::cases());
        cases.extend(crate::reduce::cases());
        cases.extend(crate::rope::cases());
        cases.extend(crate::embed::cases());
        cases.extend(crate::sample::cases());
        cases.extend(crate::qkv::cases());
        cases.extend(crate::quant::cases());
        cases.extend(crate::attention::cases());
        cases.extend(crate::cache::cases());
        cases.extend(crate::tensor::cases());
        cases.extend(crate::known::cases());
        cases.extend(crate::adversarial::cases());
        Suite { cases }
    }

    /// The cases of one operation.
    pub fn op(op: &str) -> Self {
        let mut suite = Self::all();
        suite.cases.retain(|c| c.op == op);
        suite
    }

    /// The cases that `keep` accepts.
    pub fn filter(mut self, keep: impl Fn(&Case) -> bool) -> Self {
        self.cases.retain(|c| keep(c));
        self
    }

    /// Runs the cases in order, telling `progress` of each.
    pub fn run(&self, env: &Env, progress: impl FnMut(&Case, &Outcome) + Send) -> Report {
        self.run_in(std::slice::from_ref(env), progress)
    }

    /// Runs the cases on as many threads as there are environments, each with its own runtime on the same device. Where
    /// kernels are compiled at run time, most of the time is compilation, and this is the way to use all cores for it.
    /// The report lists the cases in order and sums the coverage.
    ///
    /// # Panics
    /// When `envs` is empty.
    pub fn run_in(&self, envs: &[Env], progress: impl FnMut(&Case, &Outcome) + Send) -> Report {
        let next = AtomicUsize::new(0);
        let done: Mutex<(_, Vec<Done>)> = Mutex::new((progress, Vec::with_capacity(self.cases.len())));
        let work = |env: &Env| {
            while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < self.cases.len()) {
                let start = Instant::now();
                let outcome = self.cases[at].run(env);
                let millis = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
                let (progress, list) = &mut *done.lock().unwrap_or_else(PoisonError::into_inner);
                progress(&self.cases[at], &outcome);
                list.push(Done { at, outcome, millis });
            }
        };
        let (first, others) = envs.split_first().expect("an environment");
        std::thread::scope(|scope| {
            others.iter().for_each(|env| drop(scope.spawn(|| work(env))));
            work(first);
        });
        let (_, mut list) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        list.sort_unstable_by_key(|d| d.at);
        let mut report = Report::new(first);
        for Done { at, outcome, millis } in list {
            let entry = |message: String| Entry { name: self.cases[at].name.clone(), message, millis };
            match outcome {
                Outcome::Passed => report.passed.push(entry(String::new())),
                Outcome::Failed(message) => report.failed.push(entry(message)),
                Outcome::Skipped(reason) => report.skipped.push(entry(reason)),
            }
        }
        report.finish(envs);
        report
    }
}

/// A case that has run.
struct Done {
    at: usize,
    outcome: Outcome,
    millis: u64,
}

/// Runs all cases that `keep` accepts.
pub fn run(env: &Env, keep: impl Fn(&Case) -> bool) -> Report {
    Suite::all().filter(keep).run(env, |_, _| {})
}
