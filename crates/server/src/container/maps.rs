//! Maps ids of a user namespace to ids of this machine: user_namespaces(7).

use std::fs;

/// Id ranges: first id inside, first id outside, count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Maps(Vec<(u32, u32, u32)>);

impl Maps {
    /// The map of a process's user ids.
    pub fn of_users(pid: i32) -> Option<Maps> {
        Maps::read(&fs::read_to_string(format!("/proc/{pid}/uid_map")).ok()?)
    }

    /// The map of a process's group ids.
    pub fn of_groups(pid: i32) -> Option<Maps> {
        Maps::read(&fs::read_to_string(format!("/proc/{pid}/gid_map")).ok()?)
    }

    fn read(text: &str) -> Option<Maps> {
        let line = |line: &str| {
            let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
            Some((numbers.next()??, numbers.next()??, numbers.next()??))
        };
        text.lines().map(line).collect::<Option<Vec<_>>>().map(Maps)
    }

    /// The id inside the namespace for an id outside.
    pub fn inside(&self, outside: u32) -> Option<u32> {
        let held = |(inside, first, count): &(u32, u32, u32)| {
            let at = outside.checked_sub(*first).filter(|at| at < count)?;
            inside.checked_add(at)
        };
        self.0.iter().find_map(held)
    }

    /// The id outside for an id inside the namespace.
    pub fn outside(&self, inside: u32) -> Option<u32> {
        let held = |(first, outside, count): &(u32, u32, u32)| {
            let at = inside.checked_sub(*first).filter(|at| at < count)?;
            outside.checked_add(at)
        };
        self.0.iter().find_map(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_translated_both_ways() {
        let maps = Maps::read("         0       1000          1\n         1     100000      65536\n").expect("maps");
        assert_eq!((maps.inside(1000), maps.inside(100_032), maps.inside(0)), (Some(0), Some(33), None));
        assert_eq!((maps.outside(0), maps.outside(33), maps.outside(70_000)), (Some(1000), Some(100_032), None));
        let all = Maps::read("0 0 4294967295").expect("maps");
        assert_eq!((all.inside(7), all.outside(7)), (Some(7), Some(7)));
    }
}
