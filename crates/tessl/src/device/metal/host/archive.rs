//! Compilers, and pipelines that an earlier process has left on disk.
//!
//! A pipeline is stored as a Metal archive of its own, by a hash of all that decides it: text, constants, chip, system
//! build and our version. An archive that Metal refuses or that does not have the pipeline is replaced. Each thread
//! that compiles takes a compiler of its own, so that what it records is its pipeline alone.

use super::objects::{Obj, Own, error, ns};
use crate::device::cache::{self, Cache};
use crate::error::{Error, Result, Scope};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSProcessInfo, NSURL};
use objc2_metal::{
    MTL4Archive, MTL4Compiler, MTL4CompilerDescriptor, MTL4ComputePipelineDescriptor, MTL4LibraryDescriptor,
    MTL4PipelineDataSetSerializer, MTL4PipelineDataSetSerializerConfiguration, MTL4PipelineDataSetSerializerDescriptor,
    MTLComputePipelineState, MTLDevice, MTLLibrary,
};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

type State = Obj<dyn MTLComputePipelineState>;

/// A compiler that records what it makes, where that is kept.
struct Compiler {
    compiler: Obj<dyn MTL4Compiler>,
    recorder: Option<Obj<dyn MTL4PipelineDataSetSerializer>>,
}

/// The compilers of one device.
pub(super) struct Compilers {
    device: Obj<dyn MTLDevice>,
    idle: Mutex<Vec<Own<Compiler>>>,
    cache: Option<Cache>,
    /// Chip and system build.
    system: String,
}

impl Compilers {
    pub(super) fn new(device: &ProtocolObject<dyn MTLDevice>, cache: Option<Cache>) -> Result<Self> {
        let build = NSProcessInfo::processInfo().operatingSystemVersionString();
        let system = format!("{} {build} {}", env!("CARGO_PKG_VERSION"), device.name());
        let compilers = Compilers { device: retained(device), idle: Mutex::default(), cache, system };
        let first = compilers.make()?;
        compilers.put_back(first);
        Ok(compilers)
    }

    fn make(&self) -> Result<Own<Compiler>> {
        let descriptor = MTL4CompilerDescriptor::new();
        let recorder = self.cache.as_ref().map(|_| {
            let binaries = MTL4PipelineDataSetSerializerDescriptor::new();
            binaries.setConfiguration(MTL4PipelineDataSetSerializerConfiguration::CaptureBinaries);
            self.device.newPipelineDataSetSerializerWithDescriptor(&binaries)
        });
        descriptor.setPipelineDataSetSerializer(recorder.as_deref());
        let compiler = self.device.newCompilerWithDescriptor_error(&descriptor);
        let compiler = compiler.map_err(|e| Error::Device(Box::new(error("newCompiler", &e, "", Scope::Call))))?;
        Ok(Own(Compiler { compiler, recorder }))
    }

    fn take(&self) -> Result<Own<Compiler>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| self.make(), Ok)
    }

    fn put_back(&self, compiler: Own<Compiler>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(compiler);
    }

    pub(super) fn library(&self, name: &str, descriptor: &MTL4LibraryDescriptor) -> Result<Obj<dyn MTLLibrary>> {
        let compiler = self.take()?;
        let made = compiler.0.compiler.newLibraryWithDescriptor_error(descriptor);
        self.put_back(compiler);
        made.map_err(|e| Error::Device(Box::new(error("newLibrary", &e, name, Scope::Call))))
    }

    /// Finds a pipeline on disk or compiles it; `parts` is what decides it beside the system, `None` where that is not
    /// known.
    pub(super) fn pipeline(
        &self,
        descriptor: &MTL4ComputePipelineDescriptor,
        parts: Option<&[&[u8]]>,
    ) -> Result<Result<State, Retained<NSError>>> {
        let cached = self.cache.as_ref().zip(parts).map(|(cache, parts)| {
            (cache, cache::key([self.system.as_bytes()].into_iter().chain(parts.iter().copied())))
        });
        if let Some((cache, key)) = &cached
            && let Some(path) = cache.file(key)
        {
            let archive = self.device.newArchiveWithURL_error(&url(&path));
            match archive.and_then(|archive| archive.newComputePipelineStateWithDescriptor_error(descriptor)) {
                Ok(state) => return Ok(Ok(state)),
                Err(e) => {
                    let text = e.localizedDescription();
                    tracing::debug!(target: "tessl::cache", "{} is of no use ({text}); building it again", path.display());
                    cache.forget(key);
                }
            }
        }
        let compiler = self.take()?;
        let Compiler { compiler: inner, recorder } = &compiler.0;
        let made = inner.newComputePipelineStateWithDescriptor_compilerTaskOptions_error(descriptor, None);
        if let Some(recorder) = recorder {
            match &cached {
                Some((cache, key)) if made.is_ok() => store(recorder, cache, key),
                // What is not stored must not be recorded for the next pipeline.
                _ => return Ok(made),
            }
        }
        self.put_back(compiler);
        Ok(made)
    }
}

impl Compilers {
    /// A verdict that an earlier process has kept about this text on this system.
    pub(super) fn verdict(&self, text: &str) -> Option<Vec<u8>> {
        self.cache.as_ref()?.load(&self.verdict_key(text))
    }

    pub(super) fn keep_verdict(&self, text: &str, verdict: &[u8]) {
        if let Some(cache) = &self.cache {
            cache.store(&self.verdict_key(text), verdict);
        }
    }

    fn verdict_key(&self, text: &str) -> String {
        cache::key([b"verdict".as_slice(), self.system.as_bytes(), text.as_bytes()])
    }
}

fn retained(device: &ProtocolObject<dyn MTLDevice>) -> Obj<dyn MTLDevice> {
    objc2::Message::retain(device)
}

fn url(path: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&ns(&path.to_string_lossy()))
}

/// Writes what was recorded; a failure costs time in the next process only.
fn store(recorder: &ProtocolObject<dyn MTL4PipelineDataSetSerializer>, cache: &Cache, key: &str) {
    let temporary = cache.temporary(key);
    match recorder.serializeAsArchiveAndFlushToURL_error(&url(&temporary)) {
        Ok(()) => cache.adopt(key, &temporary),
        Err(e) => {
            let _ = std::fs::remove_file(&temporary);
            tracing::debug!(target: "tessl::cache", "a pipeline was not stored: {}", e.localizedDescription());
        }
    }
}
