use std::fs;
use std::path::Path;

use super::*;
use crate::model::IGNORED;

fn options(path: &Path) -> CorpusOptions {
    CorpusOptions {
        cache: path.with_extension("cache"),
        evaluation_fraction: 0.05,
        ..CorpusOptions::new(path)
    }
}

fn load(options: &CorpusOptions, seq: u32) -> Result<Corpus> {
    Corpus::load(options, &Vocabulary::Bytes, seq, 256, &mut |_, _| {})
}

fn plan(sequences: u32, seq: u32) -> BatchPlan {
    BatchPlan { seed: 1, sequences, accumulate: 1, seq }
}

fn write(root: &Path, name: &str, content: &[u8]) -> std::path::PathBuf {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, content).unwrap();
    path
}

#[test]
fn evaluation_walks_the_end_of_a_text_once() {
    let root = tempfile::tempdir().unwrap();
    let text: Vec<u8> = (0..200_u8).map(|i| i % 100).collect();
    let path = write(root.path(), "a.txt", &text);
    let mut corpus_options = options(&path);
    corpus_options.evaluation_fraction = 0.2;
    let corpus = load(&corpus_options, 8).unwrap();
    assert_eq!((corpus.tokens(), corpus.order(), corpus.sequences()), (200, Order::Random, None));
    // 40 tokens at the end: four sequences and what follows.
    assert_eq!(corpus.evaluation_sequences(), 4);
    let first = corpus.evaluation(&plan(3, 8), 0).unwrap();
    let rest = corpus.evaluation(&plan(3, 8), 3).unwrap();
    assert_eq!((first.sequences, rest.sequences), (3, 1));
    let inputs: Vec<i64> = [first.inputs, rest.inputs].concat();
    let expected: Vec<i64> = text[160..192].iter().map(|&byte| byte.into()).collect();
    assert_eq!(inputs, expected);
    assert_eq!(corpus.evaluation(&plan(3, 8), 4).unwrap().sequences, 0);
    corpus_options.evaluation_fraction = 0.0;
    let all = load(&corpus_options, 8).unwrap();
    assert_eq!(all.evaluation_sequences(), 0);
    assert_ne!(all.digest(), corpus.digest());
}

#[test]
fn text_files_follow_each_other_and_the_order_can_be_that_of_the_data() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "t/b.txt", b"two");
    write(root.path(), "t/a.txt", b"one\n");
    let mut options = options(&root.path().join("t"));
    options.evaluation_fraction = 0.0;
    options.order = Some(Order::Sequential);
    let corpus = load(&options, 3).unwrap();
    assert_eq!((corpus.tokens(), corpus.files(), corpus.sequences()), (8, 2, Some(2)));
    let batch = corpus.training(&plan(2, 3), 0, 0).unwrap();
    let text: Vec<u8> = batch.inputs.iter().map(|&token| token as u8).collect();
    assert_eq!(text, b"one\ntw");
    let targets: Vec<u8> = batch.targets.iter().map(|&token| token as u8).collect();
    assert_eq!(targets, b"ne\ntwo");
}

#[test]
fn tokens_of_several_files_are_one_text() {
    let root = tempfile::tempdir().unwrap();
    let tokens = |range: std::ops::Range<u16>| {
        range.flat_map(|token| (token * 100).to_le_bytes()).collect::<Vec<u8>>()
    };
    write(root.path(), "t/a.bin", &tokens(0..7));
    write(root.path(), "t/b.bin", &tokens(7..20));
    let mut options = options(&root.path().join("t"));
    options.evaluation_fraction = 0.0;
    options.order = Some(Order::Sequential);
    let load = |vocab| Corpus::load(&options, &Vocabulary::Numbers, 4, vocab, &mut |_, _| {});
    let corpus = load(2000).unwrap();
    let batch = corpus.training(&plan(2, 4), 0, 0).unwrap();
    assert_eq!(batch.inputs, [0, 100, 200, 300, 400, 500, 600, 700]);
    assert_eq!(batch.targets[7], 800);
    let text = load(1900).unwrap_err().to_string();
    assert!(text.contains("vocabulary of 1901") && text.contains("1900 tokens"), "{text}");
}

const PAIRS: &str = concat!(
    "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n",
    "{\"prompt\": \"ef\", \"completion\": \"g\"}\n",
    "{\"prompt\": \"0123456789\", \"completion\": \"x\"}\n",
    "{\"prompt\": \"h\", \"completion\": \"ijklmnopq\"}\n",
);

#[test]
fn pairs_share_sequences_where_they_fit_and_only_completions_count() {
    let root = tempfile::tempdir().unwrap();
    let path = write(root.path(), "a.jsonl", PAIRS.as_bytes());
    let mut options = options(&path);
    options.evaluation_fraction = 0.0;
    options.order = Some(Order::Sequential);
    let corpus = load(&options, 7).unwrap();
    assert_eq!((corpus.documents(), corpus.sequences()), (4, Some(2)));
    assert_eq!(corpus.left_out(), LeftOut { cut: 2, dropped: 1 });
    let batch = corpus.training(&plan(2, 7), 0, 0).unwrap();
    let shown = |tokens: &[i64]| -> String {
        let letter = |&token: &i64| match token {
            IGNORED => '-',
            0 => '.',
            byte => byte as u8 as char,
        };
        tokens.iter().map(letter).collect()
    };
    assert_eq!(shown(&batch.inputs), "abcdef.hijklmn");
    assert_eq!(shown(&batch.targets), "-cd--g-ijklmno");
    assert_eq!(batch.documents.unwrap(), [0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 0, 0, 0]);
    options.packing = false;
    let corpus = load(&options, 7).unwrap();
    let batch = corpus.training(&plan(3, 7), 0, 0).unwrap();
    assert_eq!(shown(&batch.inputs), "abc....ef.....hijklmn");
    assert_eq!(shown(&batch.targets), "-cd-----g-----ijklmno");
    assert_eq!(batch.documents, None);
}

#[test]
fn documents_fill_sequences_and_do_not_foretell_each_other() {
    let root = tempfile::tempdir().unwrap();
    let lines =
        "{\"text\": \"abcde\"}\n{\"text\": \"fg\"}\n{\"text\": \"\"}\n{\"text\": \"hijklmno\"}\n";
    let path = write(root.path(), "a.jsonl", lines.as_bytes());
    let mut options = options(&path);
    options.evaluation_fraction = 0.3;
    options.order = Some(Order::Sequential);
    let corpus = load(&options, 4).unwrap();
    // 15 tokens: sequences of four and the one after, the last one shorter.
    assert_eq!((corpus.documents(), corpus.sequences()), (3, Some(3)));
    assert_eq!(corpus.evaluation_sequences(), 1);
    let batch = corpus.training(&plan(3, 4), 0, 0).unwrap();
    let bytes: Vec<u8> = batch.inputs.iter().map(|&token| token as u8).collect();
    assert_eq!(bytes, b"abcdefghijkl");
    // a->b c d e, then e->(f) g (h) i ...
    let masked: Vec<usize> =
        (0..12).filter(|&index| batch.targets[index] == crate::model::IGNORED).collect();
    assert_eq!(masked, [4, 6]);
    let rest = corpus.evaluation(&plan(3, 4), 0).unwrap();
    assert_eq!(rest.inputs, [109, 110, 0, 0]);
    assert_eq!(rest.targets, [110, 111, -100, -100]);
    options.packing = false;
    let corpus = load(&options, 4).unwrap();
    assert_eq!(corpus.sequences().unwrap() + corpus.evaluation_sequences(), 4);
}

#[test]
fn tokens_are_made_once_until_the_text_changes() {
    let root = tempfile::tempdir().unwrap();
    let path = write(root.path(), "a.jsonl", PAIRS.as_bytes());
    let mut options = options(&path);
    options.evaluation_fraction = 0.0;
    let made = |options: &CorpusOptions| {
        let mut calls = 0;
        let corpus =
            Corpus::load(options, &Vocabulary::Bytes, 7, 256, &mut |_, _| calls += 1).unwrap();
        (calls > 0, corpus.digest().to_owned())
    };
    let (first, digest) = made(&options);
    assert!(first);
    assert_eq!(made(&options), (false, digest.clone()));
    fs::write(&path, format!("{PAIRS}{PAIRS}")).unwrap();
    let (again, other) = made(&options);
    assert!(again && other != digest);
    for entry in fs::read_dir(&options.cache).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "tokens") {
            fs::write(path, b"ab").unwrap();
        }
    }
    let text = load(&options, 7).unwrap_err().to_string();
    assert!(text.contains("remove the file"), "{text}");
}

#[test]
fn too_little_or_no_data_says_what_is_needed() {
    let root = tempfile::tempdir().unwrap();
    let text = |name: &str, content: &str, seq| {
        let path = write(root.path(), name, content.as_bytes());
        load(&options(&path), seq).unwrap_err().to_string()
    };
    let short = text("a.txt", &"x".repeat(100), 8);
    assert!(short.contains("evaluation part has 5 tokens of 100, but 9 are needed"), "{short}");
    assert!(text("b.txt", "", 8).contains("holds no text"));
    assert!(text("c.jsonl", "\n\n", 8).contains("holds no text"));
    let prompts = "{\"prompt\": \"abcdefgh\", \"completion\": \"x\"}\n";
    assert!(text("d.jsonl", prompts, 4).contains("anything to learn from"));
    let path = write(root.path(), "e.txt", &"x".repeat(100).into_bytes());
    let mut wrong = options(&path);
    wrong.evaluation_fraction = 1.0;
    assert!(load(&wrong, 8).unwrap_err().to_string().contains("fraction 1"));
    let path = write(root.path(), "f.jsonl", PAIRS.as_bytes());
    let mut wrong = options(&path);
    wrong.order = Some(Order::Random);
    assert!(load(&wrong, 7).unwrap_err().to_string().contains("--order random"));
}

#[test]
fn a_file_that_shrinks_during_the_run_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let path = write(root.path(), "a.bin", &[1; 200]);
    let mut options = options(&path);
    options.evaluation_fraction = 0.0;
    let corpus = Corpus::load(&options, &Vocabulary::Numbers, 4, 1000, &mut |_, _| {}).unwrap();
    fs::write(&path, b"").unwrap();
    let text = corpus.training(&plan(2, 4), 0, 0).unwrap_err().to_string();
    assert!(text.contains("a.bin") && text.contains("cannot read it"), "{text}");
}
