//! Devel::NYTProf under mod_perl.
//!
//! It times each call of a subroutine (`stmts=0`: no statements). It must be loaded before all other Perl code, because
//! only code compiled after it is known by file and line; so it never goes into a running worker. A handler of
//! lastdrop's switches it on in each worker at its first request after the warm-up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lastdrop_probe::process::Birth;

use super::{Clock, Language, Recording, read_lossy};
use crate::ServerError;
use crate::execution::{ProgramOutput, Question, Reader};

/// Module that the lines are about.
pub const MODULE: &str = "perl_module";
const READ_TIME: Duration = Duration::from_secs(60);

/// Lines of an Apache's configuration, after mod_perl is loaded.
pub fn apache_lines(recording: &Recording, clock: Clock) -> String {
    // Numbers of Linux: CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID.
    let clock = match clock {
        Clock::Wall => 1,
        Clock::Cpu => 2,
    };
    format!(
        "PerlSetEnv NYTPROF file=/dev/null:start=no:stmts=0:slowops=0:savesrc=0:clock={clock}\nPerlModule Devel::NYTProf\n\
         PerlRequire \"{}\"\nPerlPostReadRequestHandler LastdropProfile\n",
        recording.script.display()
    )
}

/// The module that begins the record of a worker in a folder, as soon as the file `go` is there, and ends it.
pub fn module(recording: &Recording) -> String {
    format!(
        r#"package LastdropProfile;
my ($folder, $on) = ('{folder}');
sub handler {{
    return -1 if $on || !-e '{go}';
    $on = 1;
    DB::enable_profile("$folder/calls.$$");
    return -1;
}}
END {{ DB::finish_profile() if $on }}
1;
"#,
        folder = recording.folder.display(),
        go = recording.go.display()
    )
}

/// Reads records as NYTProf writes them, and writes them as lines to the file that is named first. A record tells of returns only, so callees come
/// before their callers: what has returned at a depth is kept until the call one level above returns.
const READER: &str = r#"use strict;
require Devel::NYTProf::Data;
my (%file, %at, %calls, %names, @open, $per_us);
sub add { my ($to, $from) = @_; $to->{v} += $from->{v} || 0;
    for (keys %{$from->{k}}) { if ($to->{k}{$_}) { add($to->{k}{$_}, $from->{k}{$_}) } else { $to->{k}{$_} = $from->{k}{$_} } } }
sub plain { my $name = shift; $name =~ s/\((\w*eval) \d+\)/($1)/g; $name }
my $out = { k => {}, v => 0 };
open my $to, '>', shift or die "$!";
for my $input (@ARGV) {
    (%file, @open) = ();
    Devel::NYTProf::Data->new({ filename => $input, quiet => 1, callback => {
        ATTRIBUTE => sub { $per_us = $_[2] / 1e6 if $_[1] eq 'ticks_per_sec' },
        NEW_FID => sub { $file{$_[1]} = $_[7] },
        SUB_INFO => sub { my (undef, $fid, $line, undef, $name) = @_; $at{plain($name)} ||= [$file{$fid}, $line] if $line },
        SUB_RETURN => sub {
            my (undef, $depth, undef, $ticks, $name) = @_;
            $name = plain($name);
            $calls{$name}++;
            my $node = $open[$depth + 1] || { k => {} };
            $node->{v} = $ticks / $per_us;
            $open[$depth + 1] = undef;
            my $above = $open[$depth] ||= { k => {} };
            if ($above->{k}{$name}) { add($above->{k}{$name}, $node) } else { $above->{k}{$name} = $node }
        },
    } });
    # Calls that had not returned at the end have no record of their own.
    add($out, $_) for grep { $_ } @open;
}
sub frame { my $name = shift; $names{$name} ||= do {
    my ($file, $line) = @{ $at{$name} || [] };
    ($file, $line) = ($1, $2) if !$file && $name =~ /\[(.*):(\d+)\]/;
    (my $shown = $name) =~ s/\[.*\]$//;
    $shown =~ s/^ModPerl::ROOT::\w+::\w+::[^:]+:://;
    $file = '' unless defined $file;
    tr/;|\t\n\r/_/ for $shown, $file;
    join '|', $shown, $file, $line || 0 } }
sub show { my ($node, @path) = @_;
    printf $to "s\t%s\t%.0f\n", join(';', @path), $node->{v} if @path && $node->{v} >= 0.5;
    show($node->{k}{$_}, @path, frame($_)) for keys %{$node->{k}} }
delete $out->{k}{'LastdropProfile::handler'};
show($out);
$_ eq 'LastdropProfile::handler' or print $to "c\t", frame($_), "\t$calls{$_}\n" for keys %calls;
close $to or die "$!";
"#;

/// Checks that the profiler is installed, with the rights of a server's user.
///
/// # Errors
/// If it is not.
pub fn check_installed(user: &Birth) -> Result<(), ServerError> {
    let answer = ask(user, "shows whether Devel::NYTProf is there", &["-e", "require Devel::NYTProf::Data"])?;
    if answer.passed { Ok(()) } else { Err(ServerError::Setting(Language::Perl.missing())) }
}

/// Reads what workers have recorded, with the rights of a server's user.
///
/// # Errors
/// If there is nothing, or it cannot be read.
pub fn read(recording: &Recording) -> Result<String, ServerError> {
    let (user, folder) = (&recording.user, &recording.folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .map_err(ServerError::io(format!("cannot read {}", folder.display())))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("calls.")))
        .collect();
    files.sort();
    if files.is_empty() {
        let why = "no worker has recorded a call: the virtual host has an interpreter of its own (PerlOptions +Parent), handlers \
                   of its own (PerlPostReadRequestHandler), or its workers were killed (Apache2::SizeLimit)";
        return Err(ServerError::Setting(why.into()));
    }
    let files: Vec<String> = files.into_iter().map(|file| file.display().to_string()).collect();
    let to = folder.join("stacks");
    let to_name = to.display().to_string();
    let words: Vec<&str> = ["-e", READER, &to_name].into_iter().chain(files.iter().map(String::as_str)).collect();
    let answer = ask(user, "reads the records of Devel::NYTProf", &words)?;
    if !answer.passed {
        let last = answer.errors.lines().last().unwrap_or_default();
        return Err(ServerError::Setting(format!("the records of Devel::NYTProf cannot be read: {last}")));
    }
    let _reader = Reader::of(user);
    read_lossy(&to)
}

fn ask(user: &Birth, why: &'static str, words: &[&str]) -> Result<ProgramOutput, ServerError> {
    let words = words.iter().map(ToString::to_string);
    Question::new(user, why).program(Path::new("perl")).args(words).within(READ_TIME).ask()
}
