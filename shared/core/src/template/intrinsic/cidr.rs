//! `{"Fn::Cidr": [block, count, bits]}`: so many blocks of addresses, side by side from the start of one.
//!
//! `bits` is how many bits of an address a block leaves to hosts. Source: AWS CloudFormation User Guide, "`Fn::Cidr`"
//! (rule T4).

use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::Value;

use super::{Evaluate, Function};
use crate::error::Result;
use crate::template::Scope;
use crate::template::evaluate::{eval, kind};
use crate::template::path::Path;
use crate::template::survey::Survey;
use crate::value::{Node, Text};

pub(super) static FUNCTION: Function = Function {
    name: "Fn::Cidr",
    takes: "`[address block, count, bits]`",
    evaluate: Evaluate::Value(evaluate),
    survey,
};

fn evaluate(argument: &Value, scope: &Scope<'_>, at: &Path<'_>) -> Result<Node> {
    let mut arguments: [String; 3] = Default::default();
    for (index, (text, expression)) in
        arguments.iter_mut().zip(FUNCTION.arguments::<3>(argument, at)?).enumerate()
    {
        let at = at.index(index);
        let node = eval(expression, scope, &at)?;
        if let Some(reason) = node.unknown() {
            return Ok(Node::Unknown(reason.clone()));
        }
        *text =
            node.scalar_text().as_ref().and_then(Text::as_plain).map(str::to_owned).ok_or_else(|| {
                FUNCTION.wrong(&format!("takes texts and numbers, not {}", kind(&node)), &at)
            })?;
    }
    let [block, count, bits] = &arguments;
    let number = |text: &str, what: &str, least: u32, most: u32| {
        let number = text.trim().parse::<u32>().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| {
            FUNCTION.wrong(&format!("takes {least} to {most} as its {what}, not `{text}`"), at)
        })
    };
    let parsed = Block::parse(block);
    let block = parsed.ok_or_else(|| {
        FUNCTION.wrong(&format!("divides a block such as `10.0.0.0/16`, which `{block}` is not"), at)
    })?;
    let count = number(count, "count", 1, 256)?;
    let bits = number(bits, "bits", 1, block.width)?;
    let blocks = block.divide(count, bits).ok_or_else(|| {
        FUNCTION.wrong(
            &format!("cannot place {count} blocks of /{} in a /{}", block.width - bits, block.prefix),
            at,
        )
    })?;
    Ok(Node::List(blocks.into_iter().map(Node::text).collect()))
}

/// A block of addresses.
struct Block {
    /// The first address.
    first: u128,
    prefix: u32,
    /// Bits of an address: 32 or 128.
    width: u32,
}

impl Block {
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.trim().split_once('/')?;
        let prefix = prefix.parse().ok()?;
        let (address, width): (u128, u32) = match address.parse::<Ipv4Addr>() {
            Ok(address) => (u32::from(address).into(), 32),
            Err(_) => (address.parse::<Ipv6Addr>().ok()?.into(), 128),
        };
        let hosts = width.checked_sub(prefix).filter(|_| prefix <= width)?;
        // Bits behind the prefix are dropped: a block is known by any of its addresses.
        let first = address.checked_shr(hosts).unwrap_or(0).checked_shl(hosts).unwrap_or(0);
        Some(Self { first, prefix, width })
    }

    /// `None` if they do not fit.
    fn divide(&self, count: u32, bits: u32) -> Option<Vec<String>> {
        let room = (self.width - self.prefix).checked_sub(bits)?;
        // 256 blocks at most need 8 bits.
        if room < 8 && count > 1 << room {
            return None;
        }
        let block = |index: u32| {
            let first = self.first + (u128::from(index) << bits);
            let address = match self.width {
                32 => Ipv4Addr::from(u32::try_from(first).unwrap_or(u32::MAX)).to_string(),
                _ => Ipv6Addr::from(first).to_string(),
            };
            format!("{address}/{}", self.width - bits)
        };
        Some((0..count).map(block).collect())
    }
}

fn survey<'t>(argument: &'t Value, survey: &mut Survey<'t>, at: &Path<'_>) {
    match FUNCTION.arguments::<3>(argument, at) {
        Ok(arguments) => survey.items(arguments, at),
        Err(error) => survey.errors.push(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::sample;
    use serde_json::json;

    #[test]
    fn t4_blocks() {
        let stack = sample();
        let table = [
            (json!(["192.168.0.0/16", 2, 8]), Ok(json!(["192.168.0.0/24", "192.168.1.0/24"]))),
            (
                json!(["192.168.0.0/24", "6", "5"]),
                Ok(json!([
                    "192.168.0.0/27",
                    "192.168.0.32/27",
                    "192.168.0.64/27",
                    "192.168.0.96/27",
                    "192.168.0.128/27",
                    "192.168.0.160/27",
                ])),
            ),
            (json!(["10.1.2.3/16", 1, 8]), Ok(json!(["10.1.0.0/24"]))),
            (json!(["10.0.0.0/30", 2, 1]), Ok(json!(["10.0.0.0/31", "10.0.0.2/31"]))),
            (json!(["10.0.0.0/24", 1, 8]), Ok(json!(["10.0.0.0/24"]))),
            (json!(["2001:db8::/56", 2, 64]), Ok(json!(["2001:db8::/64", "2001:db8:0:1::/64"]))),
            (json!(["::/0", 2, 127]), Ok(json!(["::/1", "8000::/1"]))),
            (
                json!([{"Fn::Sub": "10.${Count}.0.0/16"}, {"Ref": "Count"}, 8]),
                Ok(json!(["10.2.0.0/24", "10.2.1.0/24"])),
            ),
            (json!([{"Ref": "NewBucket"}, 1, 8]), Err("known after `NewBucket`")),
            (json!(["10.0.0.0/24", 3, 7]), Err("InvalidIntrinsic")),
            (json!(["10.0.0.0/24", 1, 9]), Err("InvalidIntrinsic")),
            (json!(["10.0.0.0/16", 0, 8]), Err("InvalidIntrinsic")),
            (json!(["10.0.0.0/8", 257, 8]), Err("InvalidIntrinsic")),
            (json!(["10.0.0.0/16", 1, 0]), Err("InvalidIntrinsic")),
            (json!(["10.0.0.0/16", 1, 33]), Err("InvalidIntrinsic")),
            (json!(["10.0.0.0/33", 1, 8]), Err("InvalidIntrinsic")),
            (json!(["10.0.0.0", 1, 8]), Err("InvalidIntrinsic")),
            (json!(["10.0.0/16", 1, 8]), Err("InvalidIntrinsic")),
            (json!(["10.0.0.0/16", "many", 8]), Err("InvalidIntrinsic")),
            (json!([["10.0.0.0/16"], 1, 8]), Err("InvalidIntrinsic")),
            (json!(["10.0.0.0/16", 2]), Err("InvalidIntrinsic")),
        ];
        for (argument, expected) in table {
            let expression = json!({ "Fn::Cidr": argument });
            assert_eq!(stack.stored(&expression), expected.map_err(str::to_owned), "{expression}");
        }
        let all = stack.stored(&json!({"Fn::Cidr": ["10.0.0.0/16", 256, 8]})).unwrap();
        assert_eq!((all.as_array().unwrap().len(), &all[255]), (256, &json!("10.0.255.0/24")));
    }
}
