//! XML documents: a bounded reader into a tree of elements, and a writer.
//!
//! The reader accepts documents in UTF-8 without a document type declaration, so entities can't expand. Namespaces,
//! attributes, comments and processing instructions are skipped.

use crate::error::{Error, Result};
use quick_xml::Reader;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesStart, Event};
use std::fmt::Write as _;

/// The largest document, in bytes.
pub(crate) const MAX_DOCUMENT_BYTES: usize = 256 << 10;
/// The most levels of nested elements.
const MAX_DEPTH: usize = 16;
/// The most elements of a document.
const MAX_ELEMENTS: usize = 16_384;

/// An element and its content.
#[derive(Debug, Default)]
pub(crate) struct Element {
    /// The name, without its namespace's prefix.
    pub(crate) name: String,
    /// All text directly in the element.
    pub(crate) text: String,
    /// The child elements, in order.
    pub(crate) children: Vec<Element>,
}

impl Element {
    fn open(start: &BytesStart<'_>) -> Result<Element> {
        let name = std::str::from_utf8(start.local_name().into_inner())
            .map_err(|_| Error::xml("an element's name is not UTF-8"))?;
        Ok(Element { name: name.to_owned(), ..Element::default() })
    }

    /// The text of an element that has no child elements.
    pub(crate) fn value(&self) -> Result<&str> {
        match self.children.first() {
            None => Ok(&self.text),
            Some(child) => Err(self.unexpected(child)),
        }
    }

    /// The error for an unexpected child element.
    pub(crate) fn unexpected(&self, child: &Element) -> Error {
        Error::xml(format!("unexpected element {} in {}", crate::error::quoted(&child.name), self.name))
    }
}

/// Parses a document and returns its root.
pub(crate) fn parse(document: &[u8]) -> Result<Element> {
    if document.len() > MAX_DOCUMENT_BYTES {
        return Err(Error::TooLarge { what: "the XML document in bytes", limit: MAX_DOCUMENT_BYTES });
    }
    let document = std::str::from_utf8(document).map_err(|_| Error::xml("not UTF-8"))?;
    let mut reader = Reader::from_str(document);
    let mut tree = Tree::default();
    loop {
        match reader.read_event().map_err(|error| Error::xml(error.to_string()))? {
            Event::Start(start) => tree.open(Element::open(&start)?)?,
            Event::Empty(start) => {
                tree.open(Element::open(&start)?)?;
                tree.close()?;
            }
            Event::End(_) => tree.close()?,
            Event::Text(text) => {
                let text = text.xml10_content().map_err(|error| Error::xml(error.to_string()))?;
                tree.text(&text)?;
            }
            Event::CData(data) => {
                let text = data.xml10_content().map_err(|error| Error::xml(error.to_string()))?;
                tree.text(&text)?;
            }
            Event::GeneralRef(reference) => {
                if let Some(letter) =
                    reference.resolve_char_ref().map_err(|error| Error::xml(error.to_string()))?
                {
                    tree.text(letter.encode_utf8(&mut [0; 4]))?;
                } else {
                    let name = reference.decode().map_err(|error| Error::xml(error.to_string()))?;
                    let text = resolve_xml_entity(&name).ok_or_else(|| Error::xml("unknown entity"))?;
                    tree.text(text)?;
                }
            }
            Event::DocType(_) => return Err(Error::xml("document type declarations are not accepted")),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            Event::Eof => return tree.finish(),
        }
    }
}

/// The tree during parsing: the open elements, outermost first, and the root once it is closed.
#[derive(Default)]
struct Tree {
    open: Vec<Element>,
    root: Option<Element>,
    elements: usize,
}

impl Tree {
    fn open(&mut self, element: Element) -> Result<()> {
        self.elements += 1;
        if self.elements > MAX_ELEMENTS {
            return Err(Error::TooLarge { what: "the number of XML elements", limit: MAX_ELEMENTS });
        }
        if self.open.len() == MAX_DEPTH {
            return Err(Error::TooLarge { what: "the depth of XML elements", limit: MAX_DEPTH });
        }
        if self.root.is_some() {
            return Err(Error::xml("more than one root element"));
        }
        self.open.push(element);
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        let closed = self.open.pop().ok_or_else(|| Error::xml("an end tag without a start tag"))?;
        match self.open.last_mut() {
            Some(parent) => parent.children.push(closed),
            None => self.root = Some(closed),
        }
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<()> {
        if let Some(letter) = text.chars().find(|letter| !is_allowed(*letter)) {
            return Err(Error::xml(format!("the character U+{:04X} is not allowed", u32::from(letter))));
        }
        match self.open.last_mut() {
            Some(element) => element.text.push_str(text),
            None if text.trim().is_empty() => {}
            None => return Err(Error::xml("text outside of the root element")),
        }
        Ok(())
    }

    fn finish(self) -> Result<Element> {
        if !self.open.is_empty() {
            return Err(Error::xml("the document ends within an element"));
        }
        self.root.ok_or_else(|| Error::xml("the document is empty"))
    }
}

/// Whether XML 1.0 can represent the character.
pub(crate) fn is_allowed(letter: char) -> bool {
    matches!(letter, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}')
}

/// A document that is being written.
#[derive(Debug)]
pub(crate) struct Writer(String);

impl Writer {
    /// Starts a document with its XML declaration.
    pub(crate) fn new() -> Writer {
        Writer("<?xml version=\"1.0\" encoding=\"UTF-8\"?>".to_owned())
    }

    /// Writes an element that contains text. Characters that XML can't represent become U+FFFD.
    pub(crate) fn text(&mut self, name: &str, text: &str) -> &mut Writer {
        _ = write!(self.0, "<{name}>");
        for letter in text.chars() {
            match letter {
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '&' => self.0.push_str("&amp;"),
                // A reader would convert it to a line feed.
                '\r' => self.0.push_str("&#13;"),
                letter if is_allowed(letter) => self.0.push(letter),
                _ => self.0.push(char::REPLACEMENT_CHARACTER),
            }
        }
        _ = write!(self.0, "</{name}>");
        self
    }

    /// Writes an element that contains elements.
    pub(crate) fn element(&mut self, name: &str, inner: impl FnOnce(&mut Writer)) -> &mut Writer {
        _ = write!(self.0, "<{name}>");
        inner(self);
        _ = write!(self.0, "</{name}>");
        self
    }

    /// Writes an element with a default namespace that contains elements.
    pub(crate) fn element_in_namespace(
        &mut self,
        name: &str,
        namespace: &str,
        inner: impl FnOnce(&mut Writer),
    ) -> &mut Writer {
        _ = write!(self.0, "<{name} xmlns=\"{namespace}\">");
        inner(self);
        _ = write!(self.0, "</{name}>");
        self
    }

    /// The complete document.
    pub(crate) fn finish(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut writer = Writer::new();
        let text = " a<b>&\"c'\r\n\té😀 ";
        writer.element_in_namespace("Root", "urn:x", |root| {
            root.text("A", text).element("B", |b| _ = b.text("C", ""));
        });
        let root = parse(writer.finish().as_bytes()).unwrap();
        assert_eq!((root.name.as_str(), root.children.len()), ("Root", 2));
        assert_eq!(root.children[0].value().unwrap(), text);
        assert_eq!(root.children[1].children[0].value().unwrap(), "");
        assert!(root.value().is_err());
    }

    #[test]
    fn prefixes_comments_and_references_are_understood() {
        let text = "<?xml version=\"1.0\"?>\n<!-- c --><x:A xmlns:x=\"u\" y=\"1\"><x:B>a&#x41;&amp;<![CDATA[<&]]></x:B><C/></x:A>\n";
        let root = parse(text.as_bytes()).unwrap();
        assert_eq!((root.name.as_str(), root.children[0].name.as_str()), ("A", "B"));
        assert_eq!(root.children[0].text, "aA&<&");
        assert_eq!(root.children[1].text, "");
    }

    #[test]
    fn documents_that_are_not_well_formed_are_refused() {
        let refused = [
            "",
            " ",
            "text",
            "<A>",
            "<A></B>",
            "</A>",
            "<A/><B/>",
            "<A/>text",
            "<A>&b;</A>",
            "<A>&#1;</A>",
            "<A>\u{1}</A>",
            "<!DOCTYPE A [<!ENTITY b \"c\">]><A>&b;</A>",
        ];
        for text in refused {
            assert!(matches!(parse(text.as_bytes()), Err(Error::Malformed { .. })), "{text}");
        }
        assert!(parse(b"<A>\xff</A>").is_err());
    }

    #[test]
    fn size_depth_and_number_of_elements_are_bounded() {
        let deep = |depth: usize| format!("{}{}", "<A>".repeat(depth), "</A>".repeat(depth));
        assert!(parse(deep(MAX_DEPTH).as_bytes()).is_ok());
        assert!(matches!(parse(deep(MAX_DEPTH + 1).as_bytes()), Err(Error::TooLarge { .. })));
        let wide = |elements: usize| format!("<A>{}</A>", "<B/>".repeat(elements - 1));
        assert!(parse(wide(MAX_ELEMENTS).as_bytes()).is_ok());
        assert!(matches!(parse(wide(MAX_ELEMENTS + 1).as_bytes()), Err(Error::TooLarge { .. })));
        let long = |bytes: usize| format!("<A>{}</A>", "x".repeat(bytes - 7));
        assert!(parse(long(MAX_DOCUMENT_BYTES).as_bytes()).is_ok());
        assert!(matches!(parse(long(MAX_DOCUMENT_BYTES + 1).as_bytes()), Err(Error::TooLarge { .. })));
    }

    #[test]
    fn characters_that_xml_has_no_way_to_write_are_replaced() {
        let mut writer = Writer::new();
        writer.text("A", "a\u{1}\u{ffff}b");
        assert!(writer.finish().ends_with("<A>a\u{fffd}\u{fffd}b</A>"));
    }
}
