//! Memory of this process and of the machine, as the kernel tells it.

/// A line of a file of the form `name: number kB`, in bytes.
fn kibibytes(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 =
        line.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(number * 1024)
}

/// Resident memory of this process.
pub fn resident_bytes() -> u64 {
    kibibytes("/proc/self/status", "VmRSS").unwrap_or(0)
}

/// Its largest so far, or since it was last forgotten.
pub fn peak_bytes() -> u64 {
    kibibytes("/proc/self/status", "VmHWM").unwrap_or(0)
}

/// Lets the peak begin anew, where the kernel allows it.
pub(crate) fn forget_peak() {
    // Where it cannot be done, the peak is that of the process: what follows from it is too much, never too little.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Memory of the machine, or what this process's group may use of it.
pub fn machine_bytes() -> Option<u64> {
    let machine = kibibytes("/proc/meminfo", "MemTotal");
    machine.into_iter().chain(group_limit()).min()
}

/// Memory that could be taken now.
pub fn available_bytes() -> Option<u64> {
    let machine = kibibytes("/proc/meminfo", "MemAvailable");
    let group = group_limit().map(|limit| {
        let used = std::fs::read_to_string("/sys/fs/cgroup/memory.current");
        let used: u64 = used.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        // What only keeps files at hand is given up when it is needed.
        let stat = std::fs::read_to_string("/sys/fs/cgroup/memory.stat").unwrap_or_default();
        let cached =
            stat.lines().filter_map(|line| line.split_once(' ')).filter_map(|(key, bytes)| {
                ["inactive_file", "active_file"]
                    .contains(&key)
                    .then(|| bytes.parse::<u64>().ok())?
            });
        limit.saturating_sub(used.saturating_sub(cached.sum()))
    });
    machine.into_iter().chain(group).min()
}

/// The limit of this process's control group.
fn group_limit() -> Option<u64> {
    std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_follows_what_is_touched_and_can_be_forgotten() {
        let before = peak_bytes();
        assert!(before >= resident_bytes() / 2 && before > 1 << 20);
        let block = vec![1_u8; 64 << 20];
        assert!(peak_bytes() >= (64 << 20) && block[5] == 1);
        drop(block);
        assert!(machine_bytes().unwrap() > available_bytes().unwrap());
    }
}
