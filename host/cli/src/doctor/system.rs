//! Kernel, memory, processor.

use nearfield_runtime::io::{Backend, IoEngine, IoOptions};
use nearfield_runtime::kernels::Isa;

use super::finding::Finding;
use crate::values::human_bytes;

/// Memory that buffers of a usual run take.
const LOCKED_BYTES: u64 = 4 << 30;
/// First kernel whose io_uring has all that is used.
const KERNEL: (u32, u32) = (5, 6);

fn read(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

pub fn findings() -> Vec<Finding> {
    vec![kernel(), io_uring(), memory(), locked_memory(), huge_pages(), processor()]
}

fn kernel() -> Finding {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < KERNEL {
        let remedy = "io_uring needs Linux 5.6 or newer; threads are used instead";
        return Finding::warning("kernel", release, remedy);
    }
    Finding::good("kernel", release)
}

fn io_uring() -> Finding {
    let options = IoOptions { backend: Backend::Uring, ..IoOptions::default() };
    match IoEngine::start("doctor", &options) {
        Ok(_) => Finding::good("io_uring", "can be used"),
        Err(error) => {
            let remedy = "transfers use threads instead, with more processor time; allow io_uring: sysctl \
                          kernel.io_uring_disabled=0, and in a container a seccomp profile with io_uring_setup, \
                          io_uring_enter and io_uring_register";
            Finding::warning("io_uring", error.to_string(), remedy)
        }
    }
}

/// A line of /proc/meminfo, in bytes.
fn meminfo(name: &str) -> Option<u64> {
    let text = read("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

fn memory() -> Finding {
    let (total, free) = (meminfo("MemTotal").unwrap_or(0), meminfo("MemAvailable").unwrap_or(0));
    let found = format!("{}, of which {} are free", human_bytes(total), human_bytes(free));
    if free < total / 4 {
        let remedy = "other programs hold most of it; working weights and block outputs must fit what is left";
        return Finding::note("memory", found, remedy);
    }
    Finding::good("memory", found)
}

fn locked_memory() -> Finding {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes the structure that it is given.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } != 0;
    if failed {
        return Finding::note("locked memory", "the limit is not known", "");
    }
    if limit.rlim_cur == libc::RLIM_INFINITY {
        return Finding::good("locked memory", "no limit");
    }
    let found = format!("at most {}", human_bytes(limit.rlim_cur));
    if limit.rlim_cur < LOCKED_BYTES {
        let remedy = "buffers may not be kept in memory; raise it with ulimit -l unlimited, or memlock in \
                      /etc/security/limits.conf";
        return Finding::note("locked memory", found, remedy);
    }
    Finding::good("locked memory", found)
}

fn huge_pages() -> Finding {
    let setting = read("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = setting.split(['[', ']']).nth(1).unwrap_or("not there").to_owned();
    if chosen == "never" || chosen == "not there" {
        let remedy =
            "updates touch much memory; echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
        return Finding::note("huge pages", chosen, remedy);
    }
    Finding::good("huge pages", chosen)
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let isa = Isa::detect();
    let text = read("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = name.map_or("processor", |(_, name)| name);
    let found = format!("{name}, {cores} threads, kernels for {}", isa.name());
    if isa == Isa::Scalar {
        let remedy = "the update runs without vectors, several times slower; a processor with AVX2 is needed";
        return Finding::warning("processor", found, remedy);
    }
    Finding::good("processor", found)
}
