//! Just enough JSON for the conformance cases and the daemon's status.

use std::collections::BTreeMap;
use std::ops::Index;

#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

static NULL: Json = Json::Null;

impl Json {
    pub fn parse(text: &str) -> Json {
        let mut rest = text.as_bytes();
        let value = parse(&mut rest);
        skip(&mut rest);
        assert!(rest.is_empty(), "there is something behind the JSON");
        value
    }

    pub fn has(&self, key: &str) -> bool {
        self[key] != Json::Null
    }

    pub fn is_true(&self) -> bool {
        *self == Json::Bool(true)
    }

    pub fn number(&self) -> f64 {
        match self {
            Json::Number(n) => *n,
            _ => panic!("{self:?} is no number"),
        }
    }

    pub fn int(&self) -> u64 {
        let n = self.number();
        assert_eq!(n as u64 as f64, n);
        n as u64
    }

    pub fn text(&self) -> &str {
        match self {
            Json::Text(text) => text,
            _ => panic!("{self:?} is no text"),
        }
    }

    pub fn list(&self) -> &[Json] {
        match self {
            Json::List(list) => list,
            _ => panic!("{self:?} is no list"),
        }
    }

    pub fn ints<T: TryFrom<u64>>(&self) -> Vec<T> {
        let convert = |n: &Json| T::try_from(n.int()).ok().expect("it fits");
        self.list().iter().map(convert).collect()
    }
}

impl Index<&str> for Json {
    type Output = Json;
    fn index(&self, key: &str) -> &Json {
        match self {
            Json::Object(object) => object.get(key).unwrap_or(&NULL),
            _ => panic!("{self:?} is no object"),
        }
    }
}

fn skip(rest: &mut &[u8]) {
    while let [b' ' | b'\n' | b'\t' | b'\r', tail @ ..] = rest {
        *rest = tail;
    }
}

/// True if this comes next; takes it.
fn take(rest: &mut &[u8], word: &str) -> bool {
    skip(rest);
    match rest.strip_prefix(word.as_bytes()) {
        Some(tail) => {
            *rest = tail;
            true
        }
        None => false,
    }
}

fn expect(rest: &mut &[u8], word: &str) {
    assert!(take(rest, word), "'{word}' is missing before {:?}", &rest[..rest.len().min(20)]);
}

fn text(rest: &mut &[u8]) -> String {
    expect(rest, "\"");
    let end = rest.iter().position(|&c| c == b'"').expect("a text ends");
    let text = std::str::from_utf8(&rest[..end]).unwrap();
    assert!(!text.contains('\\'), "escapes are not expected in {text}");
    *rest = &rest[end + 1..];
    text.to_string()
}

fn parse(rest: &mut &[u8]) -> Json {
    for (word, value) in
        [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))]
    {
        if take(rest, word) {
            return value;
        }
    }
    if take(rest, "[") {
        let mut list = Vec::new();
        while !take(rest, "]") {
            if !list.is_empty() {
                expect(rest, ",");
            }
            list.push(parse(rest));
        }
        return Json::List(list);
    }
    if take(rest, "{") {
        let mut object = BTreeMap::new();
        while !take(rest, "}") {
            if !object.is_empty() {
                expect(rest, ",");
            }
            let key = text(rest);
            expect(rest, ":");
            object.insert(key, parse(rest));
        }
        return Json::Object(object);
    }
    if rest.first() == Some(&b'"') {
        return Json::Text(text(rest));
    }
    let end = rest.iter().position(|c| b",]} \n".contains(c)).unwrap_or(rest.len());
    let number = std::str::from_utf8(&rest[..end]).unwrap();
    *rest = &rest[end..];
    Json::Number(number.parse().unwrap_or_else(|_| panic!("'{number}' is no number")))
}
