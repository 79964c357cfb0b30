//! Messages that wait for the end of a commit.

use nacre_runtime::msgr::{Conn, Frame};
use nacre_types::ids::{OsdId, PgId};
use nacre_types::msg::{LogSubscribe, Message, MonCommand, OsdBoot, OsdFailure, OsdMarkMeDown, PgCas};
use std::collections::BTreeMap;

/// Maximum number of commands.
const MAX_COMMANDS: usize = 1_024;
/// Maximum bytes of commands. They hold their share of the messenger's throttle, which other messages need.
const MAX_COMMAND_BYTES: usize = 16 << 20;

/// Too many commands wait.
#[derive(Debug, thiserror::Error)]
#[error("too many commands wait for the map store")]
pub(super) struct DeferredFull;

/// What a message is about. A later message about the same replaces an earlier one, because peers repeat what is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// A command, which is never replaced; numbered.
    Command(u64),
    /// The boot of an OSD.
    Boot,
    /// The announcement that an OSD ends.
    End,
    /// A message that cannot be decoded.
    Unknown,
    /// The membership of a PG.
    Membership(PgId),
    /// The failure of an OSD.
    Failure(OsdId),
    /// A subscription to the cluster log.
    Log,
}

/// See the module's documentation. The messages keep their order.
#[derive(Default)]
pub(super) struct DeferredMessages {
    /// By their numbers.
    messages: BTreeMap<u64, (Conn, Frame)>,
    /// The number of the message of a connection about a subject.
    by_subject: BTreeMap<(u64, Subject), u64>,
    last: u64,
    commands: usize,
    command_bytes: usize,
}

impl DeferredMessages {
    /// Whether messages of this kind wait: those that change the map or the databases, and those that show the log's lines.
    pub(super) fn is_deferred(kind: u16) -> bool {
        matches!(
            kind,
            MonCommand::KIND
                | OsdBoot::KIND
                | OsdMarkMeDown::KIND
                | OsdFailure::KIND
                | PgCas::KIND
                | LogSubscribe::KIND
        )
    }

    /// Adds a message.
    pub(super) fn push(&mut self, conn: Conn, frame: Frame) -> Result<(), DeferredFull> {
        self.last += 1;
        let subject = match frame.kind() {
            MonCommand::KIND => {
                let bytes = frame.wire_bytes();
                if self.commands == MAX_COMMANDS || self.command_bytes + bytes > MAX_COMMAND_BYTES {
                    return Err(DeferredFull);
                }
                self.commands += 1;
                self.command_bytes += bytes;
                Subject::Command(self.last)
            }
            PgCas::KIND => match frame.decode::<PgCas>() {
                Ok(cas) => Subject::Membership(cas.pg),
                Err(_) => Subject::Unknown,
            },
            OsdFailure::KIND => match frame.decode::<OsdFailure>() {
                Ok(failure) => Subject::Failure(failure.target),
                Err(_) => Subject::Unknown,
            },
            LogSubscribe::KIND => Subject::Log,
            OsdBoot::KIND => Subject::Boot,
            OsdMarkMeDown::KIND => Subject::End,
            _ => Subject::Unknown,
        };
        if let Some(old) = self.by_subject.insert((conn.id(), subject), self.last) {
            self.messages.remove(&old);
        }
        self.messages.insert(self.last, (conn, frame));
        Ok(())
    }

    /// Drops the messages of a connection that has ended.
    pub(super) fn remove(&mut self, conn: u64) {
        let first = (conn, Subject::Command(0));
        let ended: Vec<_> = self.by_subject.range(first..).take_while(|((id, _), _)| *id == conn).collect();
        let ended: Vec<_> = ended.into_iter().map(|(key, number)| (*key, *number)).collect();
        for (key, number) in ended {
            self.by_subject.remove(&key);
            if let (Some((_, frame)), (_, Subject::Command(_))) = (self.messages.remove(&number), key) {
                self.commands -= 1;
                self.command_bytes -= frame.wire_bytes();
            }
        }
    }

    /// Removes the commands that `answers` answers now.
    pub(super) fn answer_commands(&mut self, mut answers: impl FnMut(&Conn, MonCommand) -> bool) {
        let mut answered = Vec::new();
        for (number, (conn, frame)) in &self.messages {
            if frame.kind() == MonCommand::KIND && frame.decode().is_ok_and(|command| answers(conn, command))
            {
                answered.push((*number, conn.id()));
            }
        }
        for (number, conn) in answered {
            self.by_subject.remove(&(conn, Subject::Command(number)));
            if let Some((_, frame)) = self.messages.remove(&number) {
                self.commands -= 1;
                self.command_bytes -= frame.wire_bytes();
            }
        }
    }

    /// Takes all messages, in their order.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (Conn, Frame)> + use<> {
        std::mem::take(self).messages.into_values()
    }
}
