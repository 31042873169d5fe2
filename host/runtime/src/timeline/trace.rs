//! Export to the Chrome trace event format, which Perfetto and `chrome://tracing` read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::Timeline;
use crate::error::{Error, Result};
use crate::graph::Graph;

/// Written step by step, so that a run of any length needs no memory for its trace.
#[derive(Debug)]
pub struct TraceFile {
    path: PathBuf,
    file: BufWriter<File>,
    written_bytes: u64,
    names: BTreeMap<String, (u32, u32)>,
}

impl TraceFile {
    /// Creates or replaces the file.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be written.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|source| Error::io("create", path, 0, 0, source))?;
        let mut trace = Self {
            path: path.to_path_buf(),
            file: BufWriter::new(file),
            written_bytes: 0,
            names: BTreeMap::new(),
        };
        trace.put("[\n")?;
        Ok(trace)
    }

    /// Adds one step that began `start_seconds` after the start of the trace.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be written.
    pub fn add(&mut self, graph: &Graph, timeline: &Timeline, start_seconds: f64) -> Result<()> {
        for (task, span) in timeline.performed(graph) {
            let resource = &graph.resources()[task.resource.0 as usize];
            let (process, thread) =
                self.thread(&resource.place.to_string(), &resource.name, span.lane, task.rank)?;
            let event = json!({
                "name": task.label,
                "cat": graph.phases()[task.phase.0 as usize],
                "ph": "X",
                "ts": (start_seconds + span.start_seconds) * 1e6,
                "dur": (span.end_seconds - span.start_seconds) * 1e6,
                "pid": process,
                "tid": thread,
                "args": { "bytes": task.op.bytes(), "task": task.id.0, "rank": task.rank },
            });
            self.event(&event)?;
        }
        Ok(())
    }

    /// Completes the file.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be written.
    pub fn finish(mut self) -> Result<()> {
        self.put("{}]\n")?;
        let (path, written) = (self.path, self.written_bytes);
        self.file.flush().map_err(|source| Error::io("write", &path, written, 0, source))
    }

    /// Process and thread number of a lane; names both when they are new.
    fn thread(&mut self, place: &str, resource: &str, lane: u32, rank: u32) -> Result<(u32, u32)> {
        let key = format!("{rank}/{resource}/{lane}");
        if let Some(&numbers) = self.names.get(&key) {
            return Ok(numbers);
        }
        let place_key = format!("{rank}//{place}");
        let next = self.names.len() as u32 + 1;
        let process = self.names.get(&place_key).map_or(next, |numbers| numbers.0);
        let name = |kind: &str, thread: u32, name: &str| json!({"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}});
        if process == next {
            self.names.insert(place_key, (next, next));
            self.event(&name("process_name", 0, place))?;
        }
        let thread = self.names.len() as u32 + 1;
        self.names.insert(key, (process, thread));
        let lane_name =
            if lane == 0 { resource.to_owned() } else { format!("{resource} ({lane})") };
        self.event(&name("thread_name", thread, &lane_name))?;
        Ok((process, thread))
    }

    fn event(&mut self, event: &serde_json::Value) -> Result<()> {
        let line = format!("{event},\n");
        self.put(&line)
    }

    fn put(&mut self, text: &str) -> Result<()> {
        self.file.write_all(text.as_bytes()).map_err(|source| {
            Error::io("write", &self.path, self.written_bytes, text.len() as u64, source)
        })?;
        self.written_bytes += text.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Span;
    use super::*;
    use crate::graph::{GraphBuilder, Op, Place};

    #[test]
    fn a_trace_is_json_with_one_event_a_task_and_named_threads() {
        let mut builder = GraphBuilder::new();
        let cpu = builder.resource("host.cpu", Place::HOST, 2);
        builder.task(cpu, Op::Mark, "say \"hi\"", &[]);
        builder.task(cpu, Op::Mark, "b", &[]);
        let graph = builder.build().unwrap();
        let span = |lane| Span { lane, ..Span::new(0.5, 1.0) };
        let timeline = Timeline { spans: vec![span(0), span(1)] };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let mut trace = TraceFile::create(&path).unwrap();
        trace.add(&graph, &timeline, 2.0).unwrap();
        trace.add(&graph, &timeline, 3.0).unwrap();
        trace.finish().unwrap();
        let events: Vec<serde_json::Value> =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let tasks: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(tasks.len(), 4);
        assert_eq!(tasks[0]["ts"], 2.5e6);
        assert_eq!(tasks[0]["name"], "say \"hi\"");
        assert_ne!(tasks[0]["tid"], tasks[1]["tid"]);
        assert_eq!(events.iter().filter(|event| event["ph"] == "M").count(), 3);
    }
}
