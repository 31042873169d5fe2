//! Archives of `torch.save`: a zip file with a pickle and one file for each storage.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::pickle::{self, Value};
use crate::error::{Error, Result};

/// torch maps storages into memory at multiples of this many bytes.
const ALIGNMENT: u16 = 64;
/// Folder of the archive that is written; torch takes any.
const FOLDER: &str = "archive";

fn failed(path: &Path, what: impl std::fmt::Display) -> Error {
    let remedy = "a file of torch.save(optimizer.state_dict(), …) is needed";
    Error::checkpoint(path, format!("it cannot be read: {what}"), remedy)
}

/// An archive that is read.
pub(super) struct TorchFile {
    file: File,
    archive: ZipArchive<File>,
    folder: String,
}

impl TorchFile {
    /// Opens an archive and reads its pickle.
    pub fn open(path: &Path) -> Result<(Self, Value)> {
        let file = File::open(path).map_err(|error| failed(path, error))?;
        let clone = file.try_clone().map_err(|error| failed(path, error))?;
        let mut archive = ZipArchive::new(clone).map_err(|error| failed(path, error))?;
        let name = archive.file_names().find(|name| name.ends_with("/data.pkl"));
        let name = name.ok_or_else(|| failed(path, "there is no data.pkl in it"))?.to_owned();
        let mut bytes = Vec::new();
        archive
            .by_name(&name)
            .map_err(|error| failed(path, error))?
            .take(pickle::BYTES_MAX)
            .read_to_end(&mut bytes)
            .map_err(|error| failed(path, error))?;
        let value = pickle::parse(&bytes).map_err(|what| failed(path, what))?;
        let folder = name.trim_end_matches("/data.pkl").to_owned();
        Ok((Self { file, archive, folder }, value))
    }

    /// First byte of a storage in the file, and its bytes.
    pub fn storage(&mut self, path: &Path, key: &str) -> Result<(u64, u64)> {
        let name = format!("{}/data/{key}", self.folder);
        let entry = self
            .archive
            .by_name(&name)
            .map_err(|error| failed(path, format_args!("{name}: {error}")))?;
        if entry.compression() != CompressionMethod::Stored {
            return Err(failed(path, format_args!("{name} is compressed")));
        }
        Ok((entry.data_start(), entry.size()))
    }

    /// The file itself, for reading storages.
    pub fn into_file(self) -> File {
        self.file
    }

    /// Bytes of a small storage.
    pub fn bytes(&mut self, path: &Path, key: &str, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let (start, length) = self.storage(path, key)?;
        if offset.checked_add(bytes as u64).is_none_or(|end| end > length) {
            return Err(failed(path, format_args!("storage {key} has only {length} bytes")));
        }
        let mut out = vec![0; bytes];
        let read = self.file.read_exact_at(&mut out, start + offset);
        read.map_err(|error| failed(path, error))?;
        Ok(out)
    }
}

/// An archive that is written.
pub(super) struct TorchWriter {
    zip: ZipWriter<BufWriter<File>>,
}

impl TorchWriter {
    /// Begins an archive with its pickle.
    pub fn create(file: File, value: &Value) -> std::io::Result<Self> {
        let mut writer = Self { zip: ZipWriter::new(BufWriter::with_capacity(1 << 20, file)) };
        writer.begin("data.pkl")?;
        writer.zip.write_all(&pickle::write(value))?;
        writer.begin("byteorder")?;
        writer.zip.write_all(b"little")?;
        Ok(writer)
    }

    fn begin(&mut self, name: &str) -> std::io::Result<()> {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(true)
            .with_alignment(ALIGNMENT);
        self.zip.start_file(format!("{FOLDER}/{name}"), options).map_err(std::io::Error::other)
    }

    /// Begins the storage of a name; its bytes follow through [`TorchWriter::write`].
    pub fn storage(&mut self, key: &str) -> std::io::Result<()> {
        self.begin(&format!("data/{key}"))
    }

    /// More bytes of the storage that has begun.
    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.zip.write_all(bytes)
    }

    /// Ends the archive and makes it durable.
    pub fn finish(mut self) -> std::io::Result<()> {
        self.begin("version")?;
        self.zip.write_all(b"3\n")?;
        let mut buffered = self.zip.finish().map_err(std::io::Error::other)?;
        buffered.flush()?;
        buffered.get_ref().sync_all()
    }
}
