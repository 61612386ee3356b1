import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as yieldTick } from 'node:timers/promises'
import { ALICE, type BareOptions, slowStore, startBare } from '../support/bare.ts'
import { call, post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { gate, lengthenTimers, until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { assertLast, headerLines, verdict } from '../support/verdict.ts'
import { answersTo, answersUntilEnd, CHUNKED, chunk, chunks, converse } from '../support/wire.ts'
import { firstAnswer, head, JSON_TYPE, postBytes, posting, Wire } from '../support/wire.ts'

const MIB = 2 ** 20
/** How long the service reads on after the last response of a connection. */
const LINGER_MS = 1000
const STRANGER: { readonly token: undefined } = { token: undefined }

/** The JSON of a plant, exactly this many bytes long. */
function plantOf(id: number, bytes: number): string {
  const empty = JSON.stringify({ id, name: '' })
  return empty.replace('""', `"${'x'.repeat(bytes - empty.length)}"`)
}

/** The owner of a request is its token. */
const authenticate: BareOptions['authenticate'] = (owner) => ({ ...ALICE, owner })

test('body: its members', async (t) => {
  const { port } = await startService(t)
  let stored = 0

  for (const [plant, expected] of [
    ['{"tag":"b","id":1,"name":"a","x":1}', '{"name":"a","tag":"b"}'],
    ['{"id":2,"name":"a"}', '{"name":"a"}'],
    ['{"id":3,"name":"","tag":""}', '{"name":"","tag":""}'],
    ['{"id":4,"__proto__":{"name":"b"},"Name":7,"name":"a"}', '{"name":"a"}'],
    ['{"id":5,"x":{"id":1,"id":2},"name":"a","ID":"x","":[]}', '{"name":"a"}'],
    ['{"id":6,"x":1e400,"y":"\\ud800","name":"a"}', '{"name":"a"}'],
    [' \t\r\n{ "id" : 7 , "name" : "a" } \n', '{"name":"a"}'],
  ] as const)
    await t.test(`${plant} is ${expected}`, async () => {
      const reply = await post(port, plant)
      assert.deepEqual([verdict(reply), reply.text], [200, expected])
      stored++
    })

  const wrongTypes = ['null', '7', 'true', '[]', '{}', '["a"]'].flatMap((value) => [
    [`{"id":9,"name":${value}}`, 'nameInvalid'] as const,
    [`{"id":9,"name":"a","tag":${value}}`, 'tagInvalid'] as const,
  ])
  for (const [body, expected] of [
    ...wrongTypes,
    ['{}', 'nameInvalid'],
    ['{"name":"a","id":9,"name":"b"}', 'memberRepeated'],
    ['{"id":9,"name":"a","\\u0069d":9}', 'memberRepeated'],
    ['{"name":"a","id":9,"id":9', 'bodyNotJson'],
    ['[{"id":9,"name":"a"}]', 'bodyNotJson'],
    ['{"id":9,"name":"a"}\0', 'bodyNotJson'],
    ['', 'bodyNotJson'],
  ] as const)
    await t.test(`${JSON.stringify(body)} is refused: ${expected}`, async () => {
      assert.equal(verdict(await post(port, body)), expected)
    })

  await t.test('only plants that were answered with 200 are stored', async () => {
    assert.equal((JSON.parse((await call(port)).text) as unknown[]).length, stored)
  })
})

const HUNDRED_THOUSAND = Array.from({ length: 100_000 }, (_, at) => `"${at}":0`).join()

/** Bodies at the default limit, each made to be slow, deep, large or read in two ways. */
const LONG_NAME = `"${'x'.repeat(500_000)}":1`
const EXTREME: readonly (readonly [string, string, ReturnType<typeof verdict>])[] = [
  ['arrays in objects, 60,000 deep', `"x":${'[{"":'.repeat(60_000)}1${'}]'.repeat(60_000)}`, 200],
  ['a million open brackets', `"x":${'['.repeat(1_000_000)}`, 'bodyNotJson'],
  ['100,000 members', HUNDRED_THOUSAND, 200],
  ['100,000, one again in escapes', `${HUNDRED_THOUSAND},"\\u0039\\u0039":0`, 'memberRepeated'],
  ['a long name twice', `${LONG_NAME},${LONG_NAME}`, 'memberRepeated'],
  ['a string of a megabyte in escapes', `"tag":"${'\\u0061'.repeat(170_000)}"`, 200],
  ['a megabyte of space', ' \t\r\n'.repeat(250_000) + '"x":1', 200],
]

test('body: extreme depths and sizes', async (t) => {
  const { port } = await startService(t)
  for (const [name, members, expected] of EXTREME)
    await t.test(name, async () => {
      const bearer = token(name)
      const reply = await post(port, `{"id":1,"name":"a",${members}}`, { token: bearer })
      assert.equal(verdict(reply), expected)
      const kept = (await call(port, { token: bearer })).json()
      assert.deepEqual(kept, expected === 200 ? [reply.json()] : [])
    })
})

test('body: its size', async (t) => {
  const { port } = await startService(t, { maxBodyBytes: 1000 })

  for (const [size, expected] of [
    [1000, 200],
    [1001, 'bodyTooLarge'],
  ] as const)
    await t.test(`of ${size} bytes, by length and chunked: ${expected}`, async () => {
      const body = plantOf(1, size)
      const inChunks = posting([CHUNKED]) + chunks(body.slice(0, 400), body.slice(400))
      for (const bytes of [postBytes(body), inChunks])
        assert.equal(verdict(await firstAnswer(port, bytes)), expected)
    })

  for (const cut of [1, 400, 1000, 1001])
    await t.test(`413 closes the connection, also if all has come; cut at ${cut}`, async () => {
      const body = plantOf(3, 1001)
      const parts = [body.slice(0, cut), body.slice(cut)].filter((part) => part !== '')
      const wire = await Wire.to(port)
      await wire.write(postBytes(plantOf(1, 1000))).answers(1)
      const bytes = posting([CHUNKED]) + chunks(...parts) + head('GET', '/plants')
      assertLast(await wire.write(bytes).allAnswers(), [200, 'bodyTooLarge'])
    })

  await t.test('413 comes before the body if its length is announced', async () => {
    assertLast([await firstAnswer(port, posting(['Content-Length: 1001']))], ['bodyTooLarge'])
  })
})

for (const framing of ['Content-Length: 5242880', CHUNKED])
  test(`body: 413 reaches a client that sends 5 MiB first; ${framing}`, async (t) => {
    lengthenTimers(t, LINGER_MS)
    const { port } = await startBare(t)
    const wire = await Wire.to(port)
    wire.write(posting([framing]))
    const piece = ' '.repeat(65_536)
    const bytes = framing === CHUNKED ? chunk(piece) : piece
    for (let sent = 0; sent < 80; sent++)
      await new Promise<void>((resolve) => wire.socket.write(bytes, 'latin1', () => resolve()))
    assert.deepEqual((await wire.allAnswers()).map(verdict), ['bodyTooLarge'])
    assert.equal(wire.error, undefined, 'no reset before the answer was read')
    wire.destroy()
  })

for (const size of [1, 1000, 64 * 1024])
  test(`body: refused, ${size} bytes are dropped; the connection stays`, async (t) => {
    const { port } = await startBare(t)
    const body = 'x'.repeat(size)
    for (const refused of [
      posting([`Content-Length: ${size}`], STRANGER) + body,
      posting([CHUNKED], STRANGER) + chunks(body),
    ]) {
      const answers = await answersTo(port, refused + head('GET', '/plants'), 2)
      assert.deepEqual(answers.map(verdict), ['tokenMissing', 200])
    }
  })

for (const [framing, connection] of [
  ['Content-Length: 65537', 'close'],
  ['Content-Length: 100000000', 'close'],
  // Its length is not known when it is answered.
  [CHUNKED, 'keep-alive'],
] as const)
  test(`body: refused, over 64 KiB: the connection closes; ${framing}`, async (t) => {
    lengthenTimers(t, LINGER_MS)
    const { port } = await startBare(t)
    const piece = 'x'.repeat(2048)
    const wire = await Wire.to(port)
    wire.write(posting([framing], STRANGER))
    for (let sent = 0; sent < 40 && !wire.ended; sent++) {
      wire.write(framing === CHUNKED ? chunk(piece) : piece)
      await yieldTick()
    }
    const answers = await wire.allAnswers()
    assert.deepEqual(answers.map(verdict), ['tokenMissing'])
    assert.deepEqual(headerLines(answers[0] ?? assert.fail(), 'connection'), [connection])
  })

test('body: without a valid token the service does not read endlessly', async (t) => {
  const { port } = await startBare(t)
  const { socket } = (await Wire.to(port)).write(posting([CHUNKED], STRANGER))
  const next = (event: string) => new Promise((resolve) => socket.once(event, resolve))
  const closed = next('close')
  const piece = chunk('x'.repeat(65_536))
  while (!socket.destroyed && socket.bytesWritten < 2 ** 30)
    if (!socket.write(piece)) await Promise.race([next('drain'), closed])
  await closed
  // The kernels of both sides hold a few MiB; the service has read the rest.
  const taken = socket.bytesWritten - socket.writableLength
  assert.ok(taken < 32 * MIB, `${taken} bytes`)
})

test('body: 100 Continue is sent only when all other checks have passed', async (t) => {
  const { port } = await startService(t)
  const expecting = (...lines: readonly string[]): string =>
    head('POST', '/plants', { lines: [...lines, 'Expect: 100-Continue'] })

  await t.test('then the body is read', async () => {
    const body = '{"id":1,"name":"a"}'
    const wire = await Wire.to(port)
    wire.write(expecting(JSON_TYPE, `Content-Length: ${body.length}`))
    await until('it is told to go on', () => wire.text.includes('\r\n\r\n'))
    assert.equal(wire.text, 'HTTP/1.1 100 Continue\r\n\r\n')
    const answers = await wire.write(body + head('GET', '/plants')).answers(2)
    assert.deepEqual(answers.map(verdict), [200, 200])
  })

  const twice = posting(['Content-Length: 5', ...Array(2).fill('Expect: 100-continue')])
  for (const [bytes, expected] of [
    [posting(['Content-Length: 5', 'Expect: 100-continue'], { token: 'abc' }), 'tokenInvalid'],
    [expecting('Content-Type: text/plain', 'Content-Length: 5'), 'mediaTypeUnsupported'],
    [expecting(JSON_TYPE, 'Content-Length: 9999999'), 'bodyTooLarge'],
    [posting(['Content-Length: 5', 'Expect: 200-ok']), 'expectationFailed'],
    [twice, 'expectationFailed'],
  ] as const)
    await t.test(`${expected} comes without it`, async () => {
      const answer = await firstAnswer(port, bytes)
      assert.deepEqual([verdict(answer), answer.interim], [expected, 0])
    })

  await t.test('HTTP/1.0 has no expectations: it is ignored', async () => {
    const old = { version: '1.0', lines: ['Expect: 100-continue'] }
    const answers = await converse(port, postBytes({ id: 2, name: 'a' }, old))
    const found = answers.map((answer) => [verdict(answer), answer.interim])
    assert.deepEqual(found, [[200, 0]])
  })
})

test('body: clients that leave while their token is verified hold no room', async (t) => {
  const { opened, open } = gate()
  const verified: string[] = []
  const { port, bodies, connections } = await startBare(t, {
    authenticate: async (owner) => (verified.push(owner), await opened, ALICE),
  })
  for (let i = 0; i < 5; i++) {
    const wire = await Wire.to(port)
    wire.write(posting([`Content-Length: ${MIB}`]))
    await until('its token is verified', () => verified.length > i)
    wire.socket.resetAndDestroy()
  }
  await until('they are gone', () => connections.sockets.length === 0)
  open()
  assert.equal(verdict(await post(port, { id: 1, name: 'a' })), 200)
  await until('nothing is held', () => bodies.held === 0)
})

for (const framing of [`Content-Length: ${MIB}`, CHUNKED])
  test(`body: clients that leave while they send hold nothing; ${framing}`, async (t) => {
    const { port, bodies } = await startBare(t)
    for (const leave of ['halfClose', 'destroy'] as const) {
      const wire = (await Wire.to(port)).write(posting([framing]) + chunk('{'))
      await until('its body is held', () => bodies.held > 0)
      wire[leave]()
      await until('nothing is held', () => bodies.held === 0)
    }
  })

test('body: slow bodies of one owner leave room for others', async (t) => {
  const { port } = await startBare(t, { authenticate, bodiesMaxBytes: 8 * MIB })
  const begun = posting([`Content-Length: ${MIB}`], { token: 'alice' })
  const holders = await Promise.all(Array.from({ length: 9 }, () => Wire.to(port)))
  for (const holder of holders) holder.write(begun)
  await until('one is turned away', () => holders.some((holder) => holder.text.includes('50303')))
  for (const owner of ['bob', 'carol'])
    assert.equal(verdict(await post(port, plantOf(1, MIB), { token: owner })), 200)
})

test('body: one of known length takes no more than that, however it comes', async (t) => {
  const BYTES = 1_000_000
  const { port, bodies } = await startBare(t, { bodiesMaxBytes: 2.1 * BYTES })
  const wire = await Wire.to(port)
  const bytes = postBytes(plantOf(1, BYTES))
  for (let at = 0; at < bytes.length; at += 50_000) {
    wire.write(bytes.slice(at, at + 50_000))
    await yieldTick()
  }
  assert.deepEqual((await wire.answers(1)).map(verdict), [200])
  assert.equal(bodies.held, 0)
})

test('body: a chunked one that finds no room is 503, and the others go on', async (t) => {
  const { port, bodies } = await startBare(t, { bodiesMaxBytes: MIB })
  const [first, second] = [await Wire.to(port), await Wire.to(port)]
  const begin = posting([CHUNKED]) + chunk('{"id":1,"name":"')
  first.write(begin + chunk('x'.repeat(300_000)))
  await until('it holds its part', () => bodies.held >= 300_000)
  second.write(begin + chunk('x'.repeat(100_000)))
  await until('so does the other', () => bodies.held >= 400_000)
  // More than half of what is free.
  second.write(chunk('x'.repeat(400_000)) + chunks('"}'))
  const [refused = assert.fail()] = await second.answers(1)
  assert.equal(verdict(refused), 'overloaded')
  assert.deepEqual(headerLines(refused, 'retry-after'), ['1'])
  first.write(chunks('"}'))
  assert.deepEqual((await first.answers(1)).map(verdict), [200])
  await until('nothing is held', () => bodies.held === 0)
})

test('body: writes that wait for a slow store are bounded; others get Retry-After', async (t) => {
  const BODY_BYTES = 2 ** 16
  const { store, release } = slowStore()
  const { port } = await startBare(t, { bodiesMaxBytes: 64 * BODY_BYTES, store })
  // Half of the 64 is one owner's at most.
  const writes = Array.from({ length: 40 }, (_, id) => post(port, plantOf(id, BODY_BYTES)))
  const refused = await Promise.any(writes)
  assert.deepEqual([verdict(refused), headerLines(refused, 'retry-after')], ['overloaded', ['1']])
  release()
  const verdicts = (await Promise.all(writes)).map(verdict)
  assert.ok(verdicts.filter((each) => each === 200).length >= 30, verdicts.join())
  assert.equal(verdict(await post(port, plantOf(99, BODY_BYTES))), 200)
})

test('body: malformed while its token is verified: 400, and no error in the log', async (t) => {
  const { opened, open } = gate()
  const bare = await startBare(t, { authenticate: async () => (await opened, ALICE) })
  const answers = await answersUntilEnd(bare.port, `${posting([CHUNKED])}1\r\n{\r\nZZ\r\n`)
  assert.deepEqual(answers.map(verdict), ['malformedRequest'])
  open()
  assert.equal(verdict(await call(bare.port)), 200)
  assert.deepEqual(bare.failures, [])
})

test('body: one that grows reserves its whole buffer', async (t) => {
  const { port, bodies } = await startBare(t)
  const wire = await Wire.to(port)
  wire.write(posting([CHUNKED]) + chunk('x'.repeat(10_000)))
  await until('the first part is held', () => bodies.held === 10_000)
  wire.write(chunk('x'))
  await until('the buffer has doubled', () => bodies.held === 20_000)
  wire.destroy()
  await until('nothing is held', () => bodies.held === 0)
})
