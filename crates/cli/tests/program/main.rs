//! The tests of the whole program, in one binary: linking 55 binaries would take as long as compiling. Run one module by its
//! name: `cargo test -p lastdrop --test program nginx::`.
// Tests start servers and the program itself.
#![allow(clippy::disallowed_methods)]

mod common;

mod analyse;
mod apache;
mod application;
mod book;
mod by_chance;
mod classes;
mod code;
mod command_lines;
mod container;
mod database;
mod doctor;
mod doctor_elsewhere;
mod elsewhere;
mod engine;
mod exports;
mod fleet;
mod fleet_blows;
mod fleet_doctor;
mod fleet_namespaces;
mod fleet_replay;
mod fleet_run;
mod formats;
mod fpm;
mod haproxy;
mod headroom;
mod host;
mod import;
mod imports;
mod input;
mod judge;
mod kinds;
mod load;
mod load_time;
mod looks;
mod meant;
mod misbehaving;
mod nginx;
mod others;
mod packages;
mod personality;
mod proxy;
mod record;
mod replay;
mod report;
mod restore;
mod rights;
mod run;
mod safe;
mod server;
mod server_time;
mod stack;
mod surroundings;
mod systemd;
mod terminal;
mod tls;
mod tools;
mod top;
mod tune;
mod tune_live;
mod ui;
mod view;
