//! Which resolver a static binary uses.
//!
//! glibc looks names up with the modules that `/etc/nsswitch.conf` lists. A static program would load the modules of the
//! machine that it runs on. They fit only the glibc that was linked; with another one the program may crash. Since glibc
//! 2.34 the modules for files and DNS are part of libc.a, so a static binary uses these two and no others. It does not find
//! a name that only another module knows (mDNS, LDAP). systemd-resolved answers by DNS.

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
pub fn use_linked_resolvers() {
    use std::ffi::{CStr, c_char, c_int};
    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
    }
    let all: [(&CStr, &CStr); 3] = [(c"hosts", c"files dns"), (c"passwd", c"files"), (c"group", c"files")];
    for (database, services) in all {
        // SAFETY: both strings are 'static, glibc copies them, and no other thread runs yet.
        unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
    }
}

#[cfg(not(all(target_env = "gnu", target_feature = "crt-static")))]
pub fn use_linked_resolvers() {}
