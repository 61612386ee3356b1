import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { startBare } from '../support/bare.ts'
import { call, post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { lengthenTimers } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { converse, firstAnswer, head, postBytes, Wire } from '../support/wire.ts'

const JSON_TYPE = 'Content-Type: application/json'
const CHUNKED = 'Transfer-Encoding: chunked'
const GOOD = head('GET', '/plants')

function postOf(lines: readonly string[], body = ''): string {
  return head('POST', '/plants', { lines: [JSON_TYPE, ...lines] }) + body
}

/** Requests that are not HTTP, or that two readers could read in two ways. */
const MALFORMED: Readonly<Record<string, string>> = {
  garbage: 'GARBAGE\r\n\r\n',
  'a TLS hello': '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03',
  'an HTTP/2 preface': 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
  'no version': 'GET /plants\r\nHost: a\r\n\r\n',
  'a space in the target': 'GET /pl ants HTTP/1.1\r\nHost: a\r\n\r\n',
  'a control character in the target': 'GET /plants\x01 HTTP/1.1\r\nHost: a\r\n\r\n',
  'a header without colon': 'GET /plants HTTP/1.1\r\nHost: a\r\nNonsense\r\n\r\n',
  'a space before the colon': 'GET /plants HTTP/1.1\r\nHost : a\r\n\r\n',
  'a NUL in a header': 'GET /plants HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n',
  'a folded header': 'GET /plants HTTP/1.1\r\nHost: a\r\n b\r\nX: a\r\n\r\n',
  'a bare CR': 'GET /plants HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n',
  'two Content-Lengths': postOf(['Content-Length: 5', 'Content-Length: 6'], 'abcdef'),
  'the same Content-Length twice': postOf(['Content-Length: 5', 'Content-Length: 5'], 'abcde'),
  'a Content-Length list': postOf(['Content-Length: 5, 5'], 'abcde'),
  'a negative Content-Length': postOf(['Content-Length: -1']),
  'a signed Content-Length': postOf(['Content-Length: +5'], 'abcde'),
  'a hexadecimal Content-Length': postOf(['Content-Length: 0x5'], 'abcde'),
  'an endless Content-Length': head('POST', '/plants', {
    lines: [JSON_TYPE, `Content-Length: ${'9'.repeat(30)}`],
  }),
  'Content-Length and Transfer-Encoding': postOf(['Content-Length: 5', CHUNKED], '0\r\n\r\n'),
  'Transfer-Encoding and Content-Length': postOf([CHUNKED, 'Content-Length: 5'], '0\r\n\r\n'),
  'a Transfer-Encoding that is not chunked': postOf(['Transfer-Encoding: identity']),
  'a Transfer-Encoding that does not end in chunked': postOf(['Transfer-Encoding: chunked, gzip']),
}

/** Bodies whose framing is broken, after headers that are good. */
const BROKEN_CHUNKS: Readonly<Record<string, string>> = {
  'a chunk size that is no number': 'xyz\r\n',
  'a negative chunk size': '-1\r\n',
  'an endless chunk size': `${'f'.repeat(20)}\r\n`,
  'a chunk longer than its size': '1\r\nab\r\n0\r\n\r\n',
  'a chunk extension of 20 KiB': `1;${'x'.repeat(20_000)}\r\na\r\n0\r\n\r\n`,
}

test('parser', async (t) => {
  const { port } = await startService(t)

  for (const [name, bytes] of Object.entries(MALFORMED)) {
    await t.test(`${name}: 400, and what follows is not read as a request`, async () => {
      const wire = await Wire.to(port)
      const answers = await wire
        .write(bytes + GOOD)
        .halfClose()
        .allAnswers()
      assert.deepEqual(answers.map(verdict), ['malformedRequest'])
      assert.deepEqual(headerLines(answers[0] ?? assert.fail(), 'connection'), ['close'])
      assert.equal(wire.error, undefined)
    })
  }

  for (const [name, chunks] of Object.entries(BROKEN_CHUNKS)) {
    await t.test(`${name}: 400; without a token 401 came before, and nothing follows`, async () => {
      for (const [options, expected] of [
        [{}, 'malformedRequest'],
        [{ token: undefined }, 'tokenMissing'],
      ] as const) {
        const bytes = head('POST', '/plants', { ...options, lines: [JSON_TYPE, CHUNKED] }) + chunks
        assert.deepEqual((await converse(port, bytes + GOOD)).map(verdict), [expected])
      }
    })
  }

  await t.test(
    'a request that the client does not complete is 400, and has no effect',
    async () => {
      for (const bytes of [
        'GET /plants HTTP/1.1\r\nHost: a\r\n',
        postBytes({ id: 66, name: 'half' }).slice(0, -1),
        postOf([CHUNKED], '13\r\n{"id":66,"name":"a"}'),
      ]) {
        assert.deepEqual((await converse(port, bytes)).map(verdict), ['malformedRequest'])
      }
      assert.equal((await call(port)).text, '[]')
    },
  )

  await t.test(
    'a client that goes on sending after garbage is not reset, and reads the 400',
    async (inner) => {
      // How long the service waits for a client after its last response.
      lengthenTimers(inner, 1000)
      const wire = await Wire.to(port)
      wire.write('GARBAGE\r\n\r\n')
      for (let i = 0; i < 10; i++) {
        await sleep(10)
        wire.write('x')
      }
      assert.deepEqual((await wire.halfClose().allAnswers()).map(verdict), ['malformedRequest'])
      assert.equal(wire.error, undefined)
    },
  )

  await t.test('garbage after a long list is 400, also if the client has ended', async () => {
    const name = 'x'.repeat(1000)
    for (let id = 1; id <= 150; id++) await post(port, { id, name }, { token: token('lister') })
    const list = head('GET', '/plants', { token: token('lister') })
    // The client ends at another moment of the list each time.
    for (let i = 0; i < 20; i++) {
      const answers = await converse(port, list + (MALFORMED['garbage'] ?? ''))
      assert.deepEqual(answers.map(verdict), [200, 'malformedRequest'])
      assert.equal(JSON.parse(answers[0]?.body ?? '').length, 150)
    }
  })

  await t.test('a good request before garbage is answered before the 400', async () => {
    for (const good of [
      GOOD,
      postBytes({ id: 67, name: 'a' }),
      head('POST', '/plants', { token: undefined, lines: ['Content-Length: 3'] }) + 'abc',
    ]) {
      const answers = await converse(port, good + good + MALFORMED['garbage'])
      assert.deepEqual(
        answers.map(({ status }) => status),
        [...answers.slice(0, 2).map(({ status }) => status), 400],
      )
      assert.equal(
        answers[0]?.status,
        good.startsWith('POST') && !good.includes('Bearer') ? 401 : 200,
      )
    }
  })

  await t.test('after a request that closes the connection nothing is answered', async () => {
    for (const after of [
      GOOD,
      MALFORMED['garbage'] ?? '',
      postBytes({ id: 68, name: 'late' }),
      '\r\n',
      'x'.repeat(300_000),
    ]) {
      for (const last of [
        head('GET', '/trees', { lines: ['Connection: close'] }),
        head('GET', '/trees', { version: '1.0' }),
      ]) {
        const wire = await Wire.to(port)
        const answers = await wire.write(last + after).allAnswers()
        assert.deepEqual(answers.map(verdict), ['pathUnknown'])
        assert.deepEqual(headerLines(answers[0] ?? assert.fail(), 'connection'), ['close'])
        wire.destroy()
      }
    }
    assert.ok(!(await call(port)).text.includes('late'))
  })

  await t.test('a good request is answered before the 400 to a broken last one', async () => {
    const first = postBytes({ id: 73, name: 'first' })
    const broken = postBytes({ id: 74, name: 'half' }, { lines: ['Connection: close'] })
    assert.deepEqual((await converse(port, first + broken.slice(0, -1))).map(verdict), [
      200,
      'malformedRequest',
    ])
    assert.ok(!(await call(port)).text.includes('half'))
  })

  await t.test('after a response with which Node closes, requests have no effect', async () => {
    for (const [first, expected] of [
      [head('GET', '/plants', { lines: ['Expect: 100-continue'] }), 200],
      [head('GET', '/trees', { lines: ['Expect: 100-continue'] }), 'pathUnknown'],
      [
        head('TRACE', '/plants', { lines: ['Expect: 100-continue', 'Expect: 100-continue'] }),
        'methodUnknown',
      ],
      [head('OPTIONS', '/plants', { version: '1.0', lines: ['Connection: keep-alive'] }), 204],
      [
        head('POST', '/plants', { lines: ['Expect: a 100-continue', 'Content-Length: 3'] }) + 'abc',
        'expectationFailed',
      ],
    ] as const) {
      const answers = await converse(port, first + postBytes({ id: 72, name: 'after' }) + GOOD)
      assert.deepEqual(answers.map(verdict), [expected])
      assert.deepEqual(headerLines(answers[0] ?? assert.fail(), 'connection'), ['close'])
    }
    assert.ok(!(await call(port)).text.includes('after'))
  })

  await t.test('empty lines before a request are ignored', async () => {
    assert.deepEqual((await converse(port, `\r\n\r\n${GOOD}\r\n${GOOD}`)).map(verdict), [200, 200])
  })

  await t.test(
    'headers just below 16 KiB are accepted; one byte more, or a long target, is 431',
    async () => {
      // Node counts the target, names and values, and refuses at the limit itself.
      const counted =
        'XHost'.length +
        'plants.test'.length +
        'Authorization'.length +
        `Bearer ${token('alice')}`.length +
        '/plants'.length
      const sized = (bytes: number) =>
        firstAnswer(port, head('GET', '/plants', { lines: [`X: ${'x'.repeat(bytes - counted)}`] }))
      assert.equal(verdict(await sized(16_383)), 200)
      assert.equal(verdict(await sized(16_384)), 'headersTooLarge')
      for (const bytes of [
        head('GET', '/plants', { lines: [`X: ${'x'.repeat(16_384)}`] }),
        head('GET', `/plants?${'x'.repeat(16_384)}`),
        head('GET', '/plants', {
          lines: Array.from({ length: 400 }, (_, at) => `X-${at}: ${'x'.repeat(50)}`),
        }),
        `${'X'.repeat(20)}: ${'x'.repeat(20_000)}`.replace(/^/, 'GET / HTTP/1.1\r\n'),
        head('GET', '/plants', { lines: [`X: ${'x'.repeat(2_000_000)}`] }),
      ]) {
        const answer = await firstAnswer(port, bytes)
        assert.equal(verdict(answer), 'headersTooLarge')
        assert.deepEqual(headerLines(answer, 'connection'), ['close'])
      }
      assert.equal(verdict(await firstAnswer(port, GOOD)), 200)
    },
  )

  await t.test('99 headers are accepted; 100 are 431 for any target and method', async () => {
    const withHeaders = (method: string, target: string, count: number, body = ''): string => {
      const lines = Array.from({ length: count - 2 }, () => 'a:')
      return head(method, target, { lines }) + body
    }
    const GET = withHeaders('GET', '/plants', 99)
    assert.deepEqual((await converse(port, GET + GOOD)).map(verdict), [200, 200])
    for (const count of [100, 101, 127, 128, 129, 500, 3000])
      for (const bytes of [
        withHeaders('GET', '/plants', count),
        withHeaders('PUT', '/trees', count),
        withHeaders('CONNECT', 'a:1', count),
        withHeaders('POST', '/plants', count, '{"id":72,"name":"many"}'),
        // The parser reads the length that the service may not see.
        `GET /plants HTTP/1.1\r\n${'a:\r\n'.repeat(count)}Content-Length: 1\r\n\r\nx`,
      ]) {
        const [answer, ...others] = await converse(port, bytes + GOOD)
        assert.deepEqual(others, [])
        assert.equal(verdict(answer ?? assert.fail()), 'headersTooLarge')
        assert.deepEqual(headerLines(answer ?? assert.fail(), 'connection'), ['close'])
      }
    assert.ok(!(await call(port)).text.includes('many'))
  })

  await t.test('trailers over 16 KiB are 431, and the plant is not created', async () => {
    const body = '{"id":69,"name":"trailed"}'
    const trailer = `X: ${'x'.repeat(20_000)}`
    const bytes = postOf([CHUNKED], `1a\r\n${body}\r\n0\r\n${trailer}\r\n\r\n`)
    assert.deepEqual((await converse(port, bytes)).map(verdict), ['headersTooLarge'])
    assert.ok(!(await call(port)).text.includes('trailed'))
  })

  await t.test('a client that half-closes still gets its responses', async () => {
    for (const bytes of [
      GOOD,
      GOOD + GOOD,
      postBytes({ id: 70, name: 'a' }) + GOOD,
      head('POST', '/plants', { token: undefined, lines: [CHUNKED] }) + '1\r\na\r\n0\r\n\r\n',
    ]) {
      const answers = await converse(port, bytes)
      assert.equal(answers.length, bytes.split('HTTP/1.1').length - 1)
    }
  })

  await t.test('after all that the service works', async () => {
    assert.equal(verdict(await post(port, { id: 71, name: 'a' })), 200)
  })
})

test('parser: a broken body after an Upgrade has no effect, and ends at its limit', async (t) => {
  const { port, plants } = await startBare(t, { timeouts: { requestMs: 300 } })
  const lines = [
    'Connection: Upgrade',
    'Upgrade: websocket',
    'Content-Type: application/json',
    CHUNKED,
  ]
  for (const [method, status] of [
    ['POST', 408],
    ['CHECKOUT', 501],
  ] as const) {
    const wire = await Wire.to(port)
    wire.write(`${head(method, '/plants', { lines })}2\r\n{}\r\n0\r\nX: a\0\r\n\r\n`)
    wire.socket.end()
    assert.deepEqual(
      (await wire.allAnswers()).map(({ status }) => status),
      [status],
    )
  }
  assert.equal(plants.size, 0)
})
