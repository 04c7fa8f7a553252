//! Which resolver a static binary uses. With glibc, names are looked up by modules that `/etc/nsswitch.conf` lists, and a static
//! program would load those of the machine that it runs on, which fit only if its glibc is the one that was linked: with
//! another one it may crash. Those for files and DNS are part of libc.a since glibc 2.34, so that a static binary uses these two and no
//! others. A name that only another module knows (mDNS, LDAP) is then unknown; systemd-resolved is reached by DNS.

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
pub fn only_what_is_linked() {
    use std::ffi::{CStr, c_char, c_int};
    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
    }
    let all: [(&CStr, &CStr); 3] = [(c"hosts", c"files dns"), (c"passwd", c"files"), (c"group", c"files")];
    for (database, services) in all {
        // SAFETY: two strings that live; no other thread runs yet. What it copies it keeps.
        unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
    }
}

#[cfg(not(all(target_env = "gnu", target_feature = "crt-static")))]
pub fn only_what_is_linked() {}
