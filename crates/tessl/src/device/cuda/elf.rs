//! Names of the kernels in a cubin: it is an ELF file with one section `.text.<kernel>` per kernel.

const MAGIC: &[u8] = b"\x7fELF\x02";

/// Whether the bytes begin like a 64-bit ELF file.
pub(super) fn is_elf(cubin: &[u8]) -> bool {
    cubin.starts_with(MAGIC)
}

/// The kernels of a cubin; empty for anything that is not one.
pub(super) fn kernels(cubin: &[u8]) -> Vec<String> {
    sections(cubin).unwrap_or_default()
}

fn sections(cubin: &[u8]) -> Option<Vec<String>> {
    if !is_elf(cubin) {
        return None;
    }
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let mut wide = [0; 8];
        wide[..bytes].copy_from_slice(cubin.get(at..at.checked_add(bytes)?)?);
        usize::try_from(u64::from_le_bytes(wide)).ok()
    };
    let (table, entry, count, strings) = (number(0x28, 8)?, number(0x3a, 2)?, number(0x3c, 2)?, number(0x3e, 2)?);
    let header = |i: usize| table.checked_add(i.checked_mul(entry)?);
    let names = number(header(strings)?.checked_add(0x18)?, 8)?;
    let mut found = Vec::new();
    for i in 0..count {
        let name = cubin.get(names.checked_add(number(header(i)?, 4)?)?..)?;
        let name = &name[..name.iter().position(|b| *b == 0)?];
        if let Some(kernel) = name.strip_prefix(b".text.") {
            found.push(String::from_utf8_lossy(kernel).into_owned());
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    #[test]
    fn anything_else_has_no_kernels() {
        for bytes in [b"".as_slice(), b"\x7fELF\x02", &[0xff; 200]] {
            assert!(super::kernels(bytes).is_empty());
        }
        let mut lying = vec![0xff; 64];
        lying[..5].copy_from_slice(super::MAGIC);
        assert!(super::kernels(&lying).is_empty());
    }
}
