//! Releases the memory of the program's own code.
//!
//! The kernel maps code from the file, 64 KB around each executed address, and counts it as resident from then on. Options,
//! plans and reports execute most of a large program once: in a run with 8 users, code was three quarters of the resident
//! memory. So a command releases its code between stages: while it reads its options, before and after each load, and before
//! its report. Code that runs again comes from the page cache, in a microsecond for each 64 KB.

use std::ffi::{c_int, c_void};

/// Releases the memory of all code and constants; the kernel maps them again when they are used.
pub fn release_code() {
    // SAFETY: the C library calls the callback with a valid description of each loaded object.
    unsafe { libc::dl_iterate_phdr(Some(release_of), std::ptr::null_mut()) };
}

/// Releases the segments that the program has mapped from its file and can never write.
unsafe extern "C" fn release_of(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: sysconf has no preconditions; the list of headers is as long as it says, and stays mapped.
    let (page, info, headers) = unsafe {
        let info = &*info;
        (
            libc::sysconf(libc::_SC_PAGESIZE),
            info,
            std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)),
        )
    };
    let Ok(page) = usize::try_from(page) else { return 1 };
    for header in headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_W == 0) {
        let start = info.dlpi_addr as usize + header.p_vaddr as usize;
        let end = start + header.p_memsz as usize;
        // Whole pages only: the next segment may begin within the last one.
        let (start, end) = (start.next_multiple_of(page), end / page * page);
        if start < end {
            // SAFETY: a private mapping that was never writable: its pages equal the file and are read from it again.
            unsafe { libc::madvise(start as *mut c_void, end - start, libc::MADV_DONTNEED) };
        }
    }
    // Stop after the program itself, which comes first.
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_file_bytes() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("of this process");
        let line = status.lines().find_map(|l| l.strip_prefix("RssFile:")).expect("it has one").trim();
        line.trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    #[test]
    fn code_that_was_run_is_given_back_and_runs_again() {
        let text = || (0..1000).map(|n| format!("{n:x}")).collect::<String>();
        let before = text();
        let bytes = resident_file_bytes();
        release_code();
        assert!(resident_file_bytes() < bytes, "{bytes} bytes before");
        assert_eq!(text(), before);
    }
}
