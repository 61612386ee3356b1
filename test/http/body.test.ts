import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Verifier } from '../../dist/auth/verifier.js'
import { startBare } from '../support/bare.ts'
import { call, post } from '../support/http.ts'
import { scrape } from '../support/metrics.ts'
import { startService } from '../support/service.ts'
import { PATIENCE_MS, lengthenTimers, until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { converse, firstAnswer, head, type HeadOptions, postBytes, Wire } from '../support/wire.ts'

const JSON_TYPE = 'Content-Type: application/json'
const CHUNKED = 'Transfer-Encoding: chunked'

function chunks(...texts: readonly string[]): string {
  return `${texts.map((text) => `${text.length.toString(16)}\r\n${text}\r\n`).join('')}0\r\n\r\n`
}

/** The start of a POST of JSON with these further headers. */
function posting(lines: readonly string[], options: HeadOptions = {}): string {
  return head('POST', '/plants', { ...options, lines: [JSON_TYPE, ...lines] })
}

/** The JSON of a plant, exactly this many bytes long. */
function plantOf(id: number, bytes: number): string {
  const empty = JSON.stringify({ id, name: '' })
  return empty.replace('""', `"${'x'.repeat(bytes - empty.length)}"`)
}

test('body: its members', async (t) => {
  const { port } = await startService(t)
  let id = 0
  const verdictOf = async (body: string) => verdict(await post(port, body))

  await t.test(
    'the answer is the Plant shape, without id and without what was not sent',
    async () => {
      assert.equal(
        (await post(port, { tag: 'b', id: ++id, name: 'a', x: 1 })).text,
        '{"name":"a","tag":"b"}',
      )
      assert.equal((await post(port, { id: ++id, name: 'a' })).text, '{"name":"a"}')
      assert.equal((await post(port, { id: ++id, name: '', tag: '' })).text, '{"name":"","tag":""}')
    },
  )

  await t.test('unknown members of any kind are ignored', async () => {
    for (const member of [
      '"x":null',
      '"__proto__":{"name":"b"}',
      '"constructor":1',
      '"toString":"x"',
      '"":[]',
      '"ID":"x"',
      '"Name":7',
      '" name":8',
      '"name ":8',
      '"name\\u0000":8',
      '"x":[1,{"x":1,"x":2}]',
      '"x":{"id":1,"id":2}',
      `"x":${'['.repeat(50_000)}${']'.repeat(50_000)}`,
      '"x":1e400',
      '"x":"\\ud800"',
      '"hasOwnProperty":1',
      '"0":1',
    ]) {
      const reply = await post(port, `{"id":${++id},${member},"name":"a"}`)
      assert.deepEqual([verdict(reply), reply.text], [200, '{"name":"a"}'], member.slice(0, 50))
    }
  })

  await t.test('a name that appears twice is refused, however it is escaped', async () => {
    for (const members of [
      '"id":1,"id":1',
      '"id":1,"\\u0069d":2',
      '"\\u0069\\u0064":1,"id":1',
      '"x":1,"x":1',
      '"x":1,"\\u0078":1',
      '"é":1,"\\u00e9":1',
      '"💐":1,"\\ud83d\\udc90":1',
      '"":1,"":1',
      '"__proto__":1,"__proto__":2',
      '"/":1,"\\/":1',
      '"\\ud800":1,"\\ud800":1',
      '"tag":null,"tag":"a"',
    ]) {
      assert.equal(
        await verdictOf(
          `{"id":901,"name":"a",${members}}`.replace('"id":901,"name":"a","id"', '"name":"a","id"'),
        ),
        'memberRepeated',
        members,
      )
    }
    assert.equal(await verdictOf('{"name":"a","id":902,"name":"b"}'), 'memberRepeated')
    assert.equal(
      await verdictOf('{"name":"a","id":902,"id":902'),
      'bodyNotJson',
      'a broken text is refused as such first',
    )
  })

  await t.test('a text that is not one JSON object is refused', async () => {
    for (const body of [
      '',
      ' ',
      '[]',
      '"a"',
      '7',
      'null',
      'true',
      '{',
      '}',
      '{}{}',
      '{"id":1,"name":"a"},',
      '{"id":1,"name":"a",}',
      "{'id':1}",
      '{id:1}',
      '{"id":1 "name":"a"}',
      '[{"id":1,"name":"a"}]',
      '{"id":1,"name":"a\n"}',
      '{"id":1,"name":"a"}\0',
      '{"id":1,"name":"\\x41"}',
      '{"id":1,"name":"a"}//',
      '/**/{"id":1,"name":"a"}',
      '\u00a0{"id":1,"name":"a"}',
      '{"id":1,"name":"a',
      `${'{"x":'.repeat(50_000)}`,
    ]) {
      assert.equal(await verdictOf(body), 'bodyNotJson', body.slice(0, 50))
    }
    assert.equal(await verdictOf(` \t\r\n{ "id" : ${++id} , "name" : "a" } \n`), 200)
  })

  await t.test('name, id and tag have their types', async () => {
    for (const value of ['null', '7', 'true', '[]', '{}', '["a"]']) {
      assert.equal(await verdictOf(`{"id":903,"name":${value}}`), 'nameInvalid', value)
      assert.equal(await verdictOf(`{"id":903,"name":"a","tag":${value}}`), 'tagInvalid', value)
    }
    assert.equal(await verdictOf('{}'), 'nameInvalid')
  })

  await t.test('only plants that were answered with 200 are stored', async () => {
    assert.equal((JSON.parse((await call(port)).text) as unknown[]).length, id)
  })
})

/** Bodies at the default limit, each made to be slow, deep, large or read in two ways. */
const EXTREME: Readonly<
  Record<string, readonly [body: string | Buffer, expected: ReturnType<typeof verdict>]>
> = {
  'arrays nested 100,000 deep': [
    `{"id":1,"name":"a","x":${'['.repeat(100_000)}${']'.repeat(100_000)}}`,
    200,
  ],
  'objects nested 100,000 deep': [
    `{"id":1,"name":"a","x":${'{"":'.repeat(100_000)}1${'}'.repeat(100_000)}}`,
    200,
  ],
  'arrays in objects in arrays, 60,000 deep': [
    `{"id":1,"name":"a","x":${'[{"":'.repeat(60_000)}1${'}]'.repeat(60_000)}}`,
    200,
  ],
  'one bracket too few at the end of 100,000': [
    `{"id":1,"name":"a","x":${'['.repeat(100_000)}${']'.repeat(99_999)}}`,
    'bodyNotJson',
  ],
  'one bracket of the wrong kind in 100,000': [
    `{"id":1,"name":"a","x":${'['.repeat(100_000)}}${']'.repeat(99_999)}}`,
    'bodyNotJson',
  ],
  'a million open brackets': ['{"x":'.padEnd(1_000_000, '['), 'bodyNotJson'],
  '100,000 members': [
    `{"id":1,${Array.from({ length: 100_000 }, (_, at) => `"${at}":0,`).join('')}"name":"a"}`,
    200,
  ],
  '100,000 members, the last one again in escapes': [
    `{"id":1,"name":"a",${Array.from({ length: 100_000 }, (_, at) => `"${at}":0`).join()},` +
      '"\\u0039\\u0039999":0}',
    'memberRepeated',
  ],
  'a name of a megabyte, twice': [
    `{"id":1,"name":"a","${'x'.repeat(500_000)}":1,"${'x'.repeat(500_000)}":1}`,
    'memberRepeated',
  ],
  'a string of a megabyte in escapes': [
    plantOf(1, 500).replace(/x+/, '\\u0061'.repeat(170_000)),
    200,
  ],
  'an id of a million digits': [`{"name":"a","id":${'9'.repeat(1_000_000)}}`, 'idInvalid'],
  'an id that is 1 after a million digits': [
    `{"name":"a","id":1${'0'.repeat(500_000)}e-500000}`,
    200,
  ],
  'an exponent of a million digits': [`{"name":"a","id":1e-${'9'.repeat(1_000_000)}}`, 'idInvalid'],
  'a megabyte of space': [' \t\r\n'.repeat(250_000), 'bodyNotJson'],
  'a megabyte of space around a plant': [
    `${' \t\r\n'.repeat(120_000)}{"id":1,"name":"a"}${'\n'.repeat(480_000)}`,
    200,
  ],
  'a plant after a megabyte of plant': [
    `${plantOf(1, 1_000_000)}{"id":2,"name":"b"}`,
    'bodyNotJson',
  ],
  'NUL bytes for space': ['{"id":1,\0"name":"a"}', 'bodyNotJson'],
  'NUL bytes after the end': ['{"id":1,"name":"a"}\0\0', 'bodyNotJson'],
  'UTF-16, little end first, with a mark': [
    Buffer.concat([Buffer.from([0xff, 0xfe]), Buffer.from('{"id":1,"name":"a"}', 'utf16le')]),
    'bodyNotUtf8',
  ],
  'UTF-16, big end first': [Buffer.from('{"id":1,"name":"a"}', 'utf16le').swap16(), 'bodyNotJson'],
  'UTF-7': ['+AHs-"id":1,"name":"a"+AH0-', 'bodyNotJson'],
  'an overlong quote': [
    Buffer.from('7b226964223a312c226e616d65223a2261c0a27d', 'hex'),
    'bodyNotUtf8',
  ],
  'an overlong slash of three bytes': [
    Buffer.from('7b226964223a312c226e616d65223a22e080af227d', 'hex'),
    'bodyNotUtf8',
  ],
  'an overlong slash of four bytes': [
    Buffer.from('7b226964223a312c226e616d65223a22f08080af227d', 'hex'),
    'bodyNotUtf8',
  ],
  'surrogates in UTF-8': [
    Buffer.from('7b226964223a312c226e616d65223a22eda0bdedb290227d', 'hex'),
    'bodyNotUtf8',
  ],
  'a cut character after the end': [
    Buffer.concat([Buffer.from('{"id":1,"name":"a"}'), Buffer.from([0xe2, 0x82])]),
    'bodyNotUtf8',
  ],
}

test('body: extreme depths, sizes and encodings', async (t) => {
  const { port } = await startService(t)
  for (const [at, [name, [body, expected]]] of Object.entries(EXTREME).entries()) {
    await t.test(name, async () => {
      const bearer = token(`extreme ${at}`)
      const reply = await post(port, body, { token: bearer })
      assert.equal(verdict(reply), expected)
      assert.deepEqual(
        (await call(port, { token: bearer })).json(),
        expected === 200 ? [reply.json()] : [],
      )
    })
  }
})

test('body: its size', async (t) => {
  const { port } = await startService(t, { maxBodyBytes: 1000 })

  await t.test('the longest is accepted, one byte more is 413, by length and chunked', async () => {
    assert.equal(verdict(await firstAnswer(port, postBytes(plantOf(1, 1000)))), 200)
    assert.equal(verdict(await firstAnswer(port, postBytes(plantOf(2, 1001)))), 'bodyTooLarge')
    for (const [size, expected] of [
      [1000, 200],
      [1001, 'bodyTooLarge'],
    ] as const) {
      const body = plantOf(3, size)
      const answer = await firstAnswer(
        port,
        posting([CHUNKED]) + chunks(body.slice(0, 400), body.slice(400)),
      )
      assert.equal(verdict(answer), expected)
    }
  })

  await t.test('413 closes the connection, also if all of the body has come', async () => {
    const body = plantOf(3, 1001)
    for (const cut of [1, 400, 1000, 1001]) {
      const parts = [body.slice(0, cut), body.slice(cut)].filter((part) => part !== '')
      const wire = await Wire.to(port)
      const large = posting([CHUNKED]) + chunks(...parts)
      await wire.write(postBytes(plantOf(1, 1000))).answers(1)
      const answers = await wire.write(large + head('GET', '/plants')).allAnswers()
      assert.deepEqual(answers.map(verdict), [200, 'bodyTooLarge'], `cut at ${cut}`)
      assert.deepEqual(headerLines(answers[1] ?? assert.fail(), 'connection'), ['close'])
    }
  })

  await t.test('413 comes before the body if its length is announced', async () => {
    const wire = await Wire.to(port)
    const [answer] = await wire.write(posting(['Content-Length: 1001'])).answers(1)
    assert.ok(answer)
    assert.equal(verdict(answer), 'bodyTooLarge')
    assert.deepEqual(headerLines(answer, 'connection'), ['close'])
    wire.destroy()
  })

  await t.test('a body in single bytes is accepted', async () => {
    const body = postBytes({ id: 4, name: 'a' })
    const wire = await Wire.to(port)
    for (const byte of body) {
      wire.write(byte)
      if (byte === '{') await new Promise((resolve) => setTimeout(resolve, 20))
    }
    assert.equal(verdict((await wire.answers(1))[0] ?? assert.fail()), 200)
    wire.destroy()
  })

  await t.test('chunk extensions and trailers are ignored', async () => {
    const body = '{"id":5,"name":"a"}'
    const extended = `${body.length.toString(16)};a=b;c="d"\r\n${body}\r\n0\r\n`
    const trailers = 'X: y\r\nAuthorization: Bearer z\r\n\r\n'
    const bytes = posting([CHUNKED, 'Trailer: X'])
    assert.deepEqual((await converse(port, bytes + extended + trailers)).map(verdict), [200])
  })
})

test('body: the default limit is 1 MiB', async (t) => {
  const { port } = await startService(t)
  assert.equal(verdict(await post(port, plantOf(1, 2 ** 20))), 200)
  assert.equal(verdict(await firstAnswer(port, postBytes(plantOf(2, 2 ** 20 + 1)))), 'bodyTooLarge')
})

/** How long the service reads on after the last response of a connection. */
const LINGER_MS = 1000

test('body: 413 reaches a client that first sends 5 MiB and then reads', async (t) => {
  lengthenTimers(t, LINGER_MS)
  const { port } = await startService(t)
  for (const framing of ['Content-Length: 5242880', CHUNKED]) {
    const wire = await Wire.to(port)
    wire.write(posting([framing]))
    for (let sent = 0; sent < 80; sent++) {
      const piece = ' '.repeat(65_536)
      const bytes = framing === CHUNKED ? `10000\r\n${piece}\r\n` : piece
      await new Promise<void>((resolve) => wire.socket.write(bytes, 'latin1', () => resolve()))
    }
    assert.deepEqual((await wire.allAnswers()).map(verdict), ['bodyTooLarge'], framing)
    assert.equal(wire.error, undefined, 'no reset before the answer was read')
    wire.destroy()
  }
})

test('body: with a refused token, up to 64 KiB are discarded; the connection stays', async (t) => {
  const { port } = await startService(t)
  const limit = 64 * 1024
  for (const size of [1, 1000, limit]) {
    for (const framing of ['length', 'chunked']) {
      const body = 'x'.repeat(size)
      const refused =
        framing === 'length'
          ? posting([`Content-Length: ${size}`], { token: undefined }) + body
          : posting([CHUNKED], { token: undefined }) + chunks(body)
      const wire = await Wire.to(port)
      const answers = await wire.write(refused + head('GET', '/plants')).answers(2)
      assert.deepEqual(answers.map(verdict), ['tokenMissing', 200], `${framing} ${size}`)
      wire.destroy()
    }
  }
})

test('body: with a refused token, over 64 KiB closes the connection after it', async (t) => {
  lengthenTimers(t, LINGER_MS)
  const { port } = await startService(t)
  const piece = 'x'.repeat(2048)
  for (const framing of ['Content-Length: 65537', 'Content-Length: 100000000', CHUNKED]) {
    const wire = await Wire.to(port)
    wire.write(posting([framing], { token: undefined }))
    for (let sent = 0; sent < 40 && !wire.ended; sent++) {
      wire.write(framing === CHUNKED ? `800\r\n${piece}\r\n` : piece)
      await new Promise((resolve) => setImmediate(resolve))
    }
    const [answer] = await wire.answers(1)
    assert.ok(answer)
    assert.equal(verdict(answer), 'tokenMissing', framing)
    // The length of a chunked body is not known when it is answered.
    const connection = framing === CHUNKED ? 'keep-alive' : 'close'
    assert.deepEqual(headerLines(answer, 'connection'), [connection])
    assert.equal((await wire.allAnswers()).length, 1)
    wire.destroy()
  }
})

test('body: without a valid token the service does not read endlessly', async (t) => {
  const { port } = await startService(t)
  const wire = await Wire.to(port)
  wire.write(posting([CHUNKED], { token: undefined }))
  const piece = Buffer.from(`10000\r\n${'x'.repeat(65_536)}\r\n`)
  const closed = new Promise((resolve) => wire.socket.once('close', resolve))
  const pump = (): void => {
    while (!wire.socket.destroyed && wire.socket.bytesWritten < 2 ** 30) {
      if (!wire.socket.write(piece)) {
        wire.socket.once('drain', pump)
        return
      }
    }
  }
  pump()
  await closed
  // The kernels of both sides hold a few MiB; the service has read the rest.
  assert.ok(
    wire.socket.bytesWritten - wire.socket.writableLength < 32 * 2 ** 20,
    String(wire.socket.bytesWritten),
  )
})

test('body: 100 Continue is sent only when all other checks have passed', async (t) => {
  const { port } = await startService(t)
  const expecting = (lines: readonly string[], bearer: string | undefined = token('alice')) =>
    head('POST', '/plants', { token: bearer, lines: [...lines, 'Expect: 100-Continue'] })
  const body = '{"id":1,"name":"a"}'
  const wire = await Wire.to(port)
  wire.write(expecting([JSON_TYPE, `Content-Length: ${body.length}`]))
  await until('it is told to go on', () => wire.text.includes('\r\n\r\n'))
  assert.match(wire.text, /^HTTP\/1\.1 100 Continue\r\n\r\n$/)
  assert.deepEqual(
    (await wire.write(body + head('GET', '/plants')).answers(2)).map(verdict),
    [200, 200],
  )
  wire.destroy()
  for (const [bytes, expected] of [
    [expecting([JSON_TYPE, 'Content-Length: 5'], 'abc'), 'tokenInvalid'],
    [expecting(['Content-Type: text/plain', 'Content-Length: 5']), 'mediaTypeUnsupported'],
    [expecting([JSON_TYPE, 'Content-Length: 9999999']), 'bodyTooLarge'],
    [posting(['Content-Length: 5', 'Expect: 200-ok']), 'expectationFailed'],
    [
      posting(['Content-Length: 5', 'Expect: 100-continue', 'Expect: 100-continue']),
      'expectationFailed',
    ],
  ] as const) {
    const refusing = await Wire.to(port)
    const [answer] = await refusing.write(bytes).answers(1)
    assert.equal(verdict(answer ?? assert.fail()), expected)
    assert.ok(!refusing.text.includes('100 Continue'))
    refusing.destroy()
  }
  // HTTP/1.0 has no expectations: it is ignored.
  assert.deepEqual(
    (
      await converse(
        port,
        postBytes({ id: 2, name: 'a' }, { version: '1.0', lines: ['Expect: 100-continue'] }),
      )
    ).map(verdict),
    [200],
  )
})

test('body: a GET with a body is answered', async (t) => {
  const { port } = await startService(t)
  await post(port, { id: 1, name: 'x'.repeat(900_000) })
  await post(port, { id: 2, name: 'x'.repeat(900_000) })
  for (const [lines, body] of [
    [['Content-Length: 5'], 'abcde'],
    [[CHUNKED], chunks('abcde')],
    [['Content-Length: 100000'], 'x'.repeat(100_000)],
    [['Content-Length: 5', 'Expect: 100-continue'], ''],
  ] as const) {
    const wire = await Wire.to(port)
    const [answer] = await wire.write(head('GET', '/plants', { lines }) + body).answers(1)
    assert.ok(answer)
    assert.equal(verdict(answer), 200, lines.join())
    assert.equal((JSON.parse(answer.body) as unknown[]).length, 2)
    wire.destroy()
  }
})

test('body: clients that leave while their token is verified hold no room', async (t) => {
  const { port, adminPort } = await startService(t, { maxBodyBytes: 16 * 2 ** 20 })
  const verify = Verifier.prototype.verify
  type Arguments = Parameters<typeof verify>
  let release = (): void => {}
  const held = new Promise<void>((resolve) => (release = resolve))
  async function verifyLate(this: Verifier, ...args: Arguments) {
    await held
    return verify.apply(this, args)
  }
  const slow = t.mock.method(Verifier.prototype, 'verify', verifyLate)
  for (let i = 0; i < 5; i++) {
    const wire = await Wire.to(port)
    wire.write(posting([`Content-Length: ${16 * 2 ** 20}`]))
    await until('its token is verified', () => slow.mock.callCount() > i)
    wire.socket.resetAndDestroy()
  }
  await until(
    'they are gone',
    async () => (await scrape(adminPort)).value('plant_store_connections') === 0,
  )
  slow.mock.restore()
  release()
  await until('there is room', async () => (await post(port, { id: 1, name: 'a' })).status === 200)
})

test('body: clients that leave while they send hold no room', async (t) => {
  const { port } = await startService(t, { maxBodyBytes: 16 * 2 ** 20 })
  for (let i = 0; i < 9; i++) {
    const wire = await Wire.to(port)
    wire.write(posting([i % 2 === 0 ? CHUNKED : `Content-Length: ${16 * 2 ** 20}`]))
    wire.write('1\r\n{\r\n')
    await new Promise((resolve) => setTimeout(resolve, 5))
    if (i % 3 === 0) wire.halfClose()
    else wire.socket.resetAndDestroy()
  }
  await until(
    'there is room again',
    async () => (await post(port, { id: 1, name: 'a' })).status === 200,
  )
})

test('body: slow bodies of one owner leave room for others', async (t) => {
  const { port } = await startService(t)
  const holders: Wire[] = []
  // More than the budget holds, by their announced length.
  for (let i = 0; i < 70; i++) {
    const holder = await Wire.to(port)
    holders.push(holder.write(`${posting([`Content-Length: ${2 ** 20}`])}{`))
  }
  await until('one is turned away', () => holders.some((holder) => holder.text.includes('50303')))
  assert.equal(verdict(await post(port, { id: 1, name: 'a' }, { token: token('bob') })), 200)
  const big = { id: 2, name: 'x'.repeat(2 ** 20 - 100) }
  assert.equal(verdict(await post(port, big, { token: token('carol') })), 200)
  for (const holder of holders) holder.destroy()
})

test('body: many short chunked ones all wait for a slow store', async (t) => {
  let release = (): void => {}
  const held = new Promise<void>((resolve) => (release = resolve))
  const { port, plants } = await startBare(t, {
    store: { create: () => held.then(() => 'stored') },
  })
  const wires = await Promise.all(Array.from({ length: 90 }, () => Wire.to(port)))
  for (const wire of wires) wire.write(`${posting([CHUNKED])}${chunks('{"id":1,"name":"many"}')}`)
  await new Promise((resolve) => setTimeout(resolve, 200))
  release()
  const answers = await Promise.all(wires.map((wire) => wire.answers(1)))
  assert.deepEqual(new Set(answers.flat().map(verdict)), new Set([200]))
  assert.equal(plants.size, 0)
  for (const wire of wires) wire.destroy()
})

test('body: a chunked one reserves what it has, not what it may have', async (t) => {
  const { port } = await startService(t, { maxBodyBytes: 16 * 2 ** 20 })
  const wires: Wire[] = []
  // A third of these would fill the budget if each counted as the longest one.
  for (let id = 0; id < 12; id++) {
    const wire = await Wire.to(port)
    wires.push(wire.write(`${posting([CHUNKED])}${chunks(`{"id":${id},`).slice(0, -5)}`))
  }
  await call(port)
  for (const wire of wires) wire.write(chunks('"name":"slow"}'))
  for (const wire of wires) assert.deepEqual((await wire.answers(1)).map(verdict), [200])
  for (const wire of wires) wire.destroy()
})

test('body: one of known length takes no more than that, however it comes', async (t) => {
  const BYTES = 1_000_000
  const { port, bodies } = await startBare(t, { bodiesMaxBytes: 2.1 * BYTES })
  const wire = await Wire.to(port)
  const bytes = postBytes(plantOf(1, BYTES).toString())
  for (let at = 0; at < bytes.length; at += 50_000) {
    wire.write(bytes.slice(at, at + 50_000))
    await new Promise((resolve) => setImmediate(resolve))
  }
  assert.deepEqual((await wire.answers(1)).map(verdict), [200])
  assert.equal(bodies.held, 0)
  wire.destroy()
})

test('body: a chunked one that finds no room is 503, and the others go on', async (t) => {
  const MIB = 2 ** 20
  const { port, bodies } = await startBare(t, { bodiesMaxBytes: MIB })
  const [first, second] = [await Wire.to(port), await Wire.to(port)]
  const part = (length: number): string => `${length.toString(16)}\r\n${'x'.repeat(length)}\r\n`
  const begin = `${posting([CHUNKED])}${chunks('{"id":1,"name":"').slice(0, -5)}`
  first.write(begin + part(300_000))
  await until('it holds its part', () => bodies.held >= 300_000)
  second.write(begin + part(100_000))
  await until('so does the other', () => bodies.held >= 400_000)
  // More than half of what is free.
  second.write(part(400_000) + chunks('"}'))
  const [refused] = await second.answers(1)
  assert.equal(verdict(refused ?? assert.fail()), 'overloaded')
  assert.deepEqual(headerLines(refused ?? assert.fail(), 'retry-after'), ['1'])
  first.write(chunks('"}'))
  assert.deepEqual((await first.answers(1)).map(verdict), [200])
  await until('nothing is held', () => bodies.held === 0)
  for (const wire of [first, second]) wire.destroy()
})

test('body: writes that wait for a slow store are bounded; others get Retry-After', async (t) => {
  const BODY_BYTES = 2 ** 16
  let release = (): void => {}
  const held = new Promise<void>((resolve) => (release = resolve))
  const { port } = await startBare(t, {
    bodiesMaxBytes: 64 * BODY_BYTES,
    store: { create: () => held.then(() => 'stored') },
  })
  const writes = Array.from({ length: 40 }, (_, id) => post(port, plantOf(id, BODY_BYTES)))
  // Half of the 64 is one owner's at most.
  const refused = await Promise.race([
    Promise.any(writes),
    new Promise<never>((_, reject) =>
      setTimeout(reject, PATIENCE_MS, new Error('none is refused')).unref(),
    ),
  ])
  assert.deepEqual([verdict(refused), headerLines(refused, 'retry-after')], ['overloaded', ['1']])
  release()
  const verdicts = (await Promise.all(writes)).map(verdict)
  assert.ok(verdicts.filter((each) => each === 200).length >= 30, verdicts.join())
  assert.deepEqual(new Set(verdicts), new Set([200, 'overloaded']))
  assert.equal(verdict(await post(port, plantOf(99, BODY_BYTES))), 200)
})

test('body: malformed while its token is verified: 400, and no error in the log', async (t) => {
  const { port, logLines } = await startService(t)
  const wire = await Wire.to(port)
  // A new token is verified in another thread.
  const bearer = token('alice', { jti: 'never seen' })
  wire.write(`${posting([CHUNKED], { token: bearer })}1\r\n{\r\nZZ\r\n`)
  assert.deepEqual((await wire.allAnswers()).map(verdict), ['malformedRequest'])
  await call(port)
  assert.deepEqual(
    logLines.filter((line) => line.includes('"level":"error"')),
    [],
  )
})

test('body: one that grows reserves its whole buffer', async (t) => {
  const { port, bodies } = await startBare(t, {})
  const wire = await Wire.to(port)
  const part = (length: number): string => `${length.toString(16)}\r\n${'x'.repeat(length)}\r\n`
  wire.write(posting([CHUNKED]) + part(10_000))
  await until('the first part is held', () => bodies.held === 10_000)
  wire.write(part(1))
  await until('the buffer has doubled', () => bodies.held === 20_000)
  wire.destroy()
  await until('nothing is held', () => bodies.held === 0)
})
