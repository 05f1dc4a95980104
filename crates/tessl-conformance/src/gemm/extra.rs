//! What a product has beyond the plain formula, as data.

use crate::data::Mem;
use crate::env::Env;
use tessl::plan::Desc;
use tessl::{DType, DeviceKind, GemmExtras, Offsets, PackDesc, PackedWeights, Tensor};
use tessl_oracle::bound;

/// How the second matrix of a gated product is passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// Not gated.
    #[default]
    None,
    /// A tensor of its own.
    Two,
    /// The second half of B's columns.
    Half,
}

/// The matrix added last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// None.
    #[default]
    None,
    /// A tensor of its own.
    Other,
    /// C itself.
    InPlace,
}

/// Groups of rows: how many rows each has, from row `first` on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Rows before the first group.
    pub first: usize,
    /// Rows of each group.
    pub sizes: Vec<usize>,
    /// The device reads the bounds.
    pub on_device: bool,
}

impl Groups {
    fn offsets(&self) -> Vec<u32> {
        let mut at = self.first;
        let ends = self.sizes.iter().map(|&size| {
            at += size;
            at
        });
        [self.first].into_iter().chain(ends).map(|x| u32::try_from(x).expect("small")).collect()
    }

    /// Makes the groups fit `m` rows.
    pub(super) fn cut(&mut self, m: usize) {
        self.first = self.first.min(m);
        let mut left = m - self.first;
        for size in &mut self.sizes {
            *size = (*size).min(left);
            left -= *size;
        }
    }
}

/// What goes beyond the plain product.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extra {
    /// Type of B where it is not that of A.
    pub other_b: Option<DType>,
    /// B is packed beforehand.
    pub packed: bool,
    /// Gated product.
    pub gate: Gate,
    /// Matrix added last.
    pub residual: Residual,
    /// Type of the scales of rows.
    pub row_scale: Option<DType>,
    /// Type of the scales of columns.
    pub col_scale: Option<DType>,
    /// The bias runs along rows.
    pub row_bias: bool,
    /// Scales are no powers of two.
    pub odd_scales: bool,
    /// Scales of blocks.
    pub blocks: bool,
    /// Groups of rows.
    pub groups: Option<Groups>,
}

/// Bounds of groups where the call wants them.
pub(super) enum Bounds {
    Host(Vec<u32>),
    Device(Tensor),
}

impl Bounds {
    pub(super) fn get(&self) -> Offsets<'_> {
        match self {
            Bounds::Host(offsets) => Offsets::Host(offsets),
            Bounds::Device(tensor) => Offsets::Device(tensor),
        }
    }
}

impl Extra {
    /// The parts of a description.
    pub(super) fn of(extras: &GemmExtras) -> Self {
        Extra {
            other_b: extras.other_b,
            packed: extras.packed,
            gate: if extras.gated { Gate::Two } else { Gate::None },
            residual: if extras.residual { Residual::Other } else { Residual::None },
            row_scale: extras.row_scale,
            col_scale: extras.col_scale,
            blocks: extras.block_scales,
            groups: (extras.groups > 0).then(|| Groups {
                first: 0,
                sizes: vec![1; extras.groups as usize],
                on_device: true,
            }),
            ..Extra::default()
        }
    }

    /// C's rows must be contiguous.
    pub(crate) fn keeps_rows(&self) -> bool {
        self.packed || self.gate != Gate::None || self.groups.is_some() || self.blocks
    }

    /// The group of row `i`.
    pub(super) fn group_of(&self, i: usize) -> Option<usize> {
        let groups = self.groups.as_ref()?;
        let offsets = groups.offsets();
        offsets.windows(2).position(|w| (w[0] as usize..w[1] as usize).contains(&i))
    }

    /// No group has row `i`.
    pub(super) fn is_outside(&self, i: usize) -> bool {
        self.groups.is_some() && self.group_of(i).is_none()
    }

    fn factor(&self, i: usize) -> f64 {
        let power = 2f64.powi(i32::try_from(i % 3).unwrap_or(0) - 1);
        // Three bits, which every type has.
        if self.odd_scales { power * (1.0 + (i % 4) as f64 / 4.0) } else { power }
    }

    /// Scale of row `i`.
    pub(super) fn row_factor(&self, i: usize) -> f64 {
        self.factor(i)
    }

    /// Scale of column `j`.
    pub(super) fn col_factor(&self, j: usize) -> f64 {
        self.factor(j + 1)
    }

    /// What the sum at (i, j) is multiplied by.
    pub(super) fn scale(&self, i: usize, j: usize) -> f64 {
        let row = self.row_scale.map_or(1.0, |_| self.row_factor(i));
        row * self.col_scale.map_or(1.0, |_| self.col_factor(j))
    }

    /// Roundings of the sum before alpha: of an i32, and of each scale.
    pub(super) fn roundings(&self, input: DType) -> f64 {
        let scales = usize::from(self.row_scale.is_some()) + usize::from(self.col_scale.is_some());
        let whole = matches!(input, DType::I8 | DType::U8);
        (scales + usize::from(whole)) as f64
    }

    /// Scale of A's block with row `i` and step `p`.
    pub(super) fn block_a(&self, i: usize, p: usize) -> f64 {
        if self.blocks { 0.5 + ((i + p / 128) % 5) as f64 / 4.0 } else { 1.0 }
    }

    /// Scale of B's block with step `p` and column `j`.
    pub(super) fn block_b(&self, p: usize, j: usize) -> f64 {
        if self.blocks { 0.75 + ((p / 128 + 2 * (j / 128)) % 7) as f64 / 8.0 } else { 1.0 }
    }

    /// Relative error that scales of blocks add to each product: both operands are rounded once, to f32.
    pub(super) fn block_error(&self) -> f64 {
        if self.blocks { 3.0 * bound::rounding(1.0) } else { 0.0 }
    }

    /// The scales of blocks as tensors.
    pub(super) fn block_tensors(
        &self,
        mem: &mut Mem<'_>,
        [m, n, k]: [usize; 3],
    ) -> Result<(Option<Tensor>, Option<Tensor>), String> {
        if !self.blocks {
            return Ok((None, None));
        }
        let (steps, columns) = (k.div_ceil(128), n.div_ceil(128));
        let mut tensor = |rows: usize, columns: usize, value: &dyn Fn(usize, usize) -> f64| {
            let mut placed = crate::data::Placed::new(DType::F32, &[rows, columns], &[columns, 1], 1);
            placed.allocate(mem)?;
            placed.fill_input(mem, |at| value(at / columns.max(1), at % columns.max(1)))?;
            placed.view()
        };
        let a = tensor(m, steps, &|i, s| self.block_a(i, 128 * s))?;
        let b = tensor(steps, columns, &|s, j| self.block_b(128 * s, 128 * j))?;
        Ok((Some(a), Some(b)))
    }

    /// The bounds of the groups.
    pub(super) fn offsets(&self, mem: &mut Mem<'_>, m: usize) -> Result<Option<Bounds>, String> {
        let Some(groups) = &self.groups else { return Ok(None) };
        let offsets = groups.offsets();
        debug_assert!(offsets.iter().all(|&o| o as usize <= m));
        if !groups.on_device {
            return Ok(Some(Bounds::Host(offsets)));
        }
        let mut placed = crate::data::Placed::new(DType::U32, &[offsets.len()], &[1], 3);
        placed.allocate(mem)?;
        placed.fill_input(mem, |at| f64::from(offsets[at]))?;
        Ok(Some(Bounds::Device(placed.view()?)))
    }

    /// Counts the plan row of packing, where the device packs.
    pub(super) fn cover_packing(
        &self,
        env: &Env,
        packed: &PackedWeights,
        batch: usize,
        shared: bool,
    ) -> Result<(), String> {
        let shape = packed.shape();
        let [k, n] = [shape[shape.len() - 2], shape[shape.len() - 1]].map(|x| u32::try_from(x).expect("small"));
        if env.rt.info().kind != DeviceKind::Cpu || n == 0 {
            return Ok(());
        }
        let batch = u32::try_from(if shared { 1 } else { batch }).expect("small");
        let (dtype, gated, backend) = (packed.dtype(), packed.is_gated(), packed.backend());
        env.cover(&Desc::Pack(PackDesc { n, k, batch, dtype, gated, backend }))
    }
}
