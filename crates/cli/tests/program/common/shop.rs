//! A small, typical PHP application with a database: a login with a token against forged requests, a search, a form that
//! creates something with a number of its own, and a page that changes it. Each thing belongs to the session that created it.

use std::fs;

use super::servers::{Daemon, Fpm, Mariadb, nginx, open_folder, php};
use super::{Folder, free_port, get};

const COMMON: &str = r#"
session_start();
function page($title, $body) {
    echo "<!doctype html><html><head><meta charset=utf-8><title>$title</title><link rel=stylesheet href=/style.css>",
         "<script src=/app.js defer></script></head><body><img src=/dot.svg>$body</body></html>";
}
function csrf() { return $_SESSION['csrf'] ??= bin2hex(random_bytes(16)); }
function refuse($why) { http_response_code(403); page('Refused', $why); exit; }
function check() { if (!hash_equals(csrf(), $_POST['csrf'] ?? '')) refuse('a wrong token'); }
function token() { return '<input type="hidden" name="csrf" value="' . csrf() . '">'; }
function here() { return 'http://' . $_SERVER['HTTP_HOST']; }
function known() { if (!isset($_SESSION['user'])) { header('Location: /login.php'); exit; } }
"#;

const LOGIN: &str = r#"
if ($_SERVER['REQUEST_METHOD'] === 'POST') {
    check();
    $q = $db->prepare('SELECT password FROM users WHERE name = ?');
    $q->bind_param('s', $_POST['username']);
    $q->execute();
    $row = $q->get_result()->fetch_row();
    if (!$row || !password_verify($_POST['password'], $row[0])) refuse('a wrong password');
    session_regenerate_id(true);
    $_SESSION = ['user' => $_POST['username']];
    header('Location: ' . here() . '/index.php');
    exit;
}
page('Log in', '<form method="post" action="/login.php">' . token() . '<input name="username"><input type="password" name="password">'
    . '<button id="go">Go</button></form>');
"#;

const INDEX: &str = r#"
known();
page('Things', '<form action="' . here() . '/search.php"><input name="q"><button id="go">Search</button></form>'
    . '<a id="new" href="' . here() . '/new.php">new</a>');
"#;

const SEARCH: &str = r#"
known();
$q = $db->prepare('SELECT id, name FROM things WHERE owner = "" AND name LIKE ? ORDER BY id');
$like = '%' . $_GET['q'] . '%';
$q->bind_param('s', $like);
$q->execute();
$list = '';
foreach ($q->get_result() as $row) $list .= "<li><a href=\"/thing.php?id={$row['id']}\">{$row['name']}</a>";
page('Found', "<ul>$list</ul><a id=\"new\" href=\"/new.php\">new</a>");
"#;

const NEW: &str = r#"
known();
if ($_SERVER['REQUEST_METHOD'] === 'POST') {
    check();
    if (($_SESSION['drafts'][$_POST['draft']] ?? 0) !== 1) refuse('no such draft');
    $_SESSION['drafts'][$_POST['draft']] = 2;
    $q = $db->prepare('INSERT INTO things (name, owner) VALUES (?, ?)');
    $owner = session_id();
    $q->bind_param('ss', $_POST['name'], $owner);
    $q->execute();
    header('Location: /thing.php?id=' . $db->insert_id, true, 303);
    exit;
}
$draft = random_int(100000, 999999);
$_SESSION['drafts'][$draft] = 1;
page('New', '<form method="post">' . token() . "<input type='hidden' name='draft' value='$draft'>"
    . '<input name="name"><button id="go">Make</button></form>');
"#;

const THING: &str = r#"
known();
$id = (int)$_GET['id'];
$q = $db->prepare('SELECT name, owner, price FROM things WHERE id = ?');
$q->bind_param('i', $id);
$q->execute();
$row = $q->get_result()->fetch_assoc();
if (!$row) refuse('no such thing');
if ($_SERVER['REQUEST_METHOD'] === 'POST') {
    check();
    if ($row['owner'] !== session_id()) refuse('somebody else has made it');
    $q = $db->prepare('UPDATE things SET price = ? WHERE id = ?');
    $q->bind_param('si', $_POST['price'], $id);
    $q->execute();
    page('Saved', 'saved');
    exit;
}
page('Thing', '<form method="post">' . token() . '<input name="price"><button id="go">Save</button></form>');
"#;

pub const USER: &str = "ann@example.test";
pub const PASSWORD: &str = "correct horse 7 battery";

/// The application, on nginx with PHP-FPM and MariaDB; all end on drop.
pub struct Shop {
    pub port: u16,
    _nginx: Daemon,
    _fpm: Fpm,
    _database: Mariadb,
}

impl Shop {
    pub fn start(folder: &Folder) -> Shop {
        let database = Mariadb::start(folder, &["--max-connections=60"]);
        let (port, root, sessions) = (free_port(), open_folder(folder, "www"), open_folder(folder, "sessions"));
        let fpm = Fpm::start(folder, 6, &format!("php_admin_value[session.save_path] = {}", sessions.display()));
        let begin = format!("{}$db->select_db('shop');\n{COMMON}", database.connect());
        let hash = format!("password_hash('{PASSWORD}', PASSWORD_BCRYPT, ['cost' => 4])");
        php(
            &root,
            "setup.php",
            &format!(
                "{}\n$db->query('CREATE DATABASE shop');\n$db->select_db('shop');\n\
                 $db->query('CREATE TABLE users (name VARCHAR(99), password VARCHAR(99))');\n\
                 $db->query('CREATE TABLE things (id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(99), owner VARCHAR(99), price VARCHAR(9))');\n\
                 $db->query(\"INSERT INTO users VALUES ('{USER}', '\" . {hash} . \"')\");\n\
                 foreach (['blue shoe', 'red shoe', 'hat'] as $n) $db->query(\"INSERT INTO things (name, owner) VALUES ('$n', '')\");\n\
                 echo 'made';",
                database.connect()
            ),
        );
        php(
            &root,
            "count.php",
            &format!(
                "{begin}\necho json_encode($db->query('SELECT COUNT(*), COUNT(DISTINCT owner), COUNT(price) FROM things WHERE owner <> \"\"')\
                 ->fetch_row());"
            ),
        );
        for (name, code) in [("login", LOGIN), ("index", INDEX), ("search", SEARCH), ("new", NEW), ("thing", THING)] {
            php(&root, &format!("{name}.php"), &format!("{begin}\n{code}"));
        }
        for (name, text) in [
            ("style.css", "body { margin: 1em }"),
            ("app.js", "document.documentElement.dataset.ready = 1;"),
            ("dot.svg", "<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'/>"),
        ] {
            fs::write(root.join(name), text).expect("written");
        }
        let site = format!(
            " include /etc/nginx/mime.types;\n server {{\n  listen 127.0.0.1:{port};\n  root {};\n  index none;\n  location = / {{ return 200 ok; }}\n  \
             location ~ \\.php$ {{\n   include /etc/nginx/fastcgi_params;\n   fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;\n   \
             fastcgi_param HTTP_HOST $http_host;\n   fastcgi_pass unix:{};\n  }}\n }}",
            root.display(),
            fpm.socket.display()
        );
        let nginx = nginx(folder, &site, port);
        let made = get(port, "/setup.php");
        assert!(made.as_deref().is_some_and(|body| body.contains("made")), "{made:?}");
        Shop { port, _nginx: nginx, _fpm: fpm, _database: database }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The number of things, of sessions that created some, and of things with a price.
    pub fn count(&self) -> (u64, u64, u64) {
        let body = get(self.port, "/count.php").expect("an answer");
        let list = body.split(['[', ']']).nth(1).unwrap_or_else(|| panic!("{body}"));
        let numbers: Vec<u64> = list.split(',').map(|n| n.trim_matches('"').parse().expect("a number")).collect();
        (numbers[0], numbers[1], numbers[2])
    }
}
