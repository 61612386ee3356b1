import assert from 'node:assert/strict'
import { test } from 'node:test'
import { binary, encode, type Fields, Message } from '../../../dist/store/etcd/protobuf.js'
import { seeded } from '../../support/random.ts'

/** Each byte of a text is one character. */
const ALL_BYTES = String.fromCharCode(...Array.from({ length: 256 }, (_, byte) => byte))

function bytesOf(hex: string): Buffer {
  return Buffer.from(hex.replaceAll(' ', ''), 'hex')
}

test('encode() writes the examples of protobuf.dev/programming-guides/encoding', () => {
  for (const [message, hex] of [
    [{ 1: 150 }, '08 9601'],
    [{ 2: 'testing' }, '12 07 74657374696e67'],
    [{ 3: { 1: 150 } }, '1a 03 089601'],
    // A repeated field: 4 is a text and 5 has integers that are not packed.
    [{ 5: [1, 2, 3], 4: 'hello' }, '22 05 68656c6c6f 28 01 28 02 28 03'],
    [{}, ''],
    [{ 1: 0 }, '08 00'],
    [{ 16: 127 }, '8001 7f'],
  ] as const satisfies readonly (readonly [Fields, string])[])
    assert.deepEqual(encode(message), bytesOf(hex), hex)
})

test('what encode() writes, a Message reads: integers, bytes and messages', () => {
  const integers = [0, 1, 127, 128, 16_383, 16_384, 2 ** 31, 2 ** 32, 2 ** 53 - 1]
  for (const integer of integers)
    assert.equal(new Message(encode({ 9: integer })).integer(9), integer)
  const texts = ['', 'x', ALL_BYTES, 'y'.repeat(100_000), binary('\u00e9\ud83c\udf3f')]
  for (const text of texts) assert.equal(new Message(encode({ 1: text })).text(1), text)
  const message = new Message(encode({ 2: [{ 5: 7 }, {}], 3: 1 }))
  assert.deepEqual(
    message.messages(2).map((each) => each.integer(5)),
    [7, 0],
  )
})

test('a Message: absent fields are empty, the last of several counts, others do not', () => {
  // A fixed64, a fixed32, and a field of a later version between two that are known.
  const message = new Message(bytesOf('08 05  31 0102030405060708  3d 01020304  7a 01 61  08 06'))
  assert.equal(message.integer(1), 6)
  assert.equal(message.integer(2), 0)
  assert.equal(message.text(2), '')
  assert.deepEqual(message.messages(2), [])
  // A field of another type than expected counts as absent.
  assert.equal(message.text(1), '')
  assert.equal(message.integer(15), 0)
})

test('a Message: bytes that are cut, or of no type, are refused', () => {
  for (const hex of ['08', '08 80', '12 05 61', '0b', '0c', '0e', '0f', 'ff', '31 00', '3d 00'])
    assert.throws(() => new Message(bytesOf(hex)), /^Error: a message /, hex)
  const whole = encode({ 2: 'x'.repeat(200) })
  // A length of 150 bytes is no number.
  const endless = Buffer.concat([bytesOf('12'), Buffer.alloc(150, 0x80), bytesOf('01 61')])
  assert.throws(() => new Message(endless), /^Error: a message ends too early/)
  for (let end = 1; end < whole.length; end++)
    assert.throws(() => new Message(whole.subarray(0, end)), /^Error: a message ends too early/)
})

test('a Message of random bytes is read or refused, and takes no longer than they are', (t) => {
  const { random } = seeded(t)
  for (let round = 0; round < 2000; round++) {
    const bytes = Buffer.from({ length: Math.floor(random() * 64) })
    for (let i = 0; i < bytes.length; i++) bytes[i] = Math.floor(random() * 256)
    try {
      const message = new Message(bytes)
      for (let field = 1; field < 32; field++)
        assert.ok(message.text(field).length <= bytes.length && message.integer(field) >= 0)
    } catch (error) {
      assert.match(String(error), /^Error: a message /)
    }
  }
})
