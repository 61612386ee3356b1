import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { Socket } from 'node:net'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Caller } from '../../dist/auth/caller.js'
import { HttpError } from '../../dist/errors.js'
import { Exchange } from '../../dist/http/exchange.js'
import { Budget } from '../../dist/limits/budget.js'
import { ALICE, startBare } from '../support/bare.ts'
import { seeded } from '../support/random.ts'
import { THOROUGH } from '../support/scale.ts'
import { listening } from '../support/serving.ts'
import { until } from '../support/time.ts'
import { verdict } from '../support/verdict.ts'
import { CHUNKED, chunk, chunks, head, posting, Wire } from '../support/wire.ts'

/*
 * A chunked body that comes while its token waits: it is collected in one buffer, and its socket is
 * stopped after one read.
 */

const MIB = 2 ** 20
/** Most that one read of a socket brings. */
const READ_BYTES = 64 * 1024
const POST = posting([CHUNKED])
const THOUSAND = chunk('x'.repeat(1000))

/** A token that waits until `decide` is called. */
function slowToken() {
  const waiting: ((caller: Caller | Promise<Caller>) => void)[] = []
  return {
    authenticate: () => new Promise<Caller>((resolve) => waiting.push(resolve)),
    decide: async (caller: Caller | Promise<Caller> = ALICE) => {
      await until('a token waits', () => waiting.length > 0)
      waiting.shift()?.(caller)
    },
  }
}

function refusal(): Promise<Caller> {
  const refused = Promise.reject(new HttpError('tokenInvalid', ['WWW-Authenticate', 'Bearer']))
  refused.catch(() => {})
  return refused
}

async function start(t: Parameters<typeof startBare>[0]) {
  const tokens = slowToken()
  const bare = await startBare(t, { authenticate: tokens.authenticate })
  const sockets: Socket[] = []
  bare.server.on('connection', (socket) => sockets.push(socket))
  const wire = await Wire.to(bare.port)
  await until('it is connected', () => sockets.length === 1)
  const verdicts = async (count: number) => (await wire.answers(count)).map(verdict)
  return { ...bare, ...tokens, wire, verdicts, bytesRead: () => sockets[0]?.bytesRead ?? 0 }
}

test('collected: bodies in random chunks, around their token, arrive whole', async (t) => {
  const { wire, verdicts, plants, decide } = await start(t)
  const { random } = seeded(t)
  for (let id = 1; id <= (THOROUGH ? 40 : 10); id++) {
    const name = 'ab'.repeat(Math.ceil(random() ** 4 * 150_000))
    const body = JSON.stringify({ id, name })
    const longest = [1, 7, 1000, 50_000][Math.floor(random() * 4)] ?? 1
    // Tiny chunks of a long body take long, here as there.
    let bytes = POST
    for (let at = 0; at < body.length; ) {
      const length = Math.ceil(random() * Math.max(longest, body.length / 20_000))
      bytes += chunk(body.slice(at, at + length))
      at += length
    }
    bytes += '0\r\n\r\n'
    const before = Math.floor(random() * (bytes.length + 1))
    wire.write(bytes.slice(0, before))
    if (before >= POST.length) await decide()
    wire.write(bytes.slice(before))
    if (before < POST.length) await decide()
    assert.deepEqual(await verdicts(id), Array(id).fill(200))
    assert.equal(plants.get(BigInt(id))?.name, name)
  }
})

test('collected: no more than one read is taken while the token waits', async (t) => {
  const { wire, verdicts, plants, decide, bytesRead } = await start(t)
  const name = 'x'.repeat(900_000)
  wire.write(POST + chunk('{"id":1,"name":"'))
  await until('its beginning has come', () => bytesRead() > POST.length)
  const before = bytesRead()
  wire.write(chunks(name, '"}'))
  await sleep(100)
  assert.ok(bytesRead() - before <= READ_BYTES, `${bytesRead() - before} bytes were read`)
  await decide()
  assert.deepEqual(await verdicts(1), [200])
  assert.equal(plants.get(1n)?.name, name)
})

test('collected: one that is refused is dropped, and the connection goes on', async (t) => {
  const { wire, verdicts, plants, decide } = await start(t)
  const body = chunks('{"id":1,', '"name":"refused"}')
  wire.write(POST + body.slice(0, 9))
  await decide(refusal())
  assert.deepEqual(await verdicts(1), ['tokenInvalid'])
  wire.write(body.slice(9))
  wire.write(POST + body)
  await decide()
  assert.deepEqual(await verdicts(2), ['tokenInvalid', 200])
  assert.equal(plants.size, 1)
})

test('collected: more than 64 KiB of a refused one ends the connection', async (t) => {
  const { wire, verdicts, plants, decide } = await start(t)
  wire.write(POST + THOUSAND.repeat(40))
  await decide(refusal())
  assert.deepEqual(await verdicts(1), ['tokenInvalid'])
  wire.write(THOUSAND.repeat(40))
  await until('the service has ended its side', () => wire.ended)
  assert.equal(plants.size, 0)
})

test('collected: of a whole one only its bytes are held, and once dropped nothing', async (t) => {
  const sizes: number[] = []
  const hold = new Budget(MIB).reserve('alice', 0)
  let isRead = false
  const server = createServer((req, res) => {
    const { body } = new Exchange(req, res)
    body.collect()
    const [collector] = req.listeners('data')
    req.once('end', async () => {
      if (isRead) body.drop()
      else sizes.push((await body.read(MIB, hold)).buffer.byteLength)
      assert.ok(collector && !req.listeners('data').includes(collector))
      assert.equal(body.state, isRead ? 'dropping' : 'done')
      isRead = true
      res.end()
    })
  })
  const wire = await Wire.to(await listening(t, server))
  const body = chunks('x'.repeat(20_000), 'x'.repeat(20_000))
  await wire.write(POST + body).answers(1)
  await wire.write(POST + body).answers(2)
  assert.deepEqual(sizes, [40_000])
})

test('collected: the client of one that waits can leave', async (t) => {
  const { wire, decide, connections, plants, bytesRead } = await start(t)
  const bytes = POST + chunk('{"id":1,"name":"left"}')
  wire.write(bytes)
  await until('it is read', () => bytesRead() === bytes.length)
  wire.destroy()
  await decide()
  await until('the connection is gone', () => connections.sockets.length === 0)
  assert.equal(plants.size, 0)
})

test('collected: one that no operation wants is dropped, and the list follows', async (t) => {
  const { wire, verdicts, decide } = await start(t)
  wire.write(head('GET', '/plants', { lines: [CHUNKED] }) + chunk('x').repeat(3000))
  await decide()
  assert.deepEqual(await verdicts(1), [200])
  wire.write(`${chunk('y').repeat(3000)}0\r\n\r\n${head('GET', '/plants')}`)
  await decide()
  assert.deepEqual(await verdicts(2), [200, 200])
})

test('collected: 64 KiB of a waiting chunked one are dropped; then no more is read', async (t) => {
  const { wire, verdicts, decide, bytesRead } = await start(t)
  // The first request waits for its token, so the second one is not served.
  wire.write(head('GET', '/plants'))
  await until('it is being served', () => bytesRead() > 0)
  wire.write(POST + THOUSAND.repeat(1000))
  await sleep(200)
  assert.ok(bytesRead() < 4 * READ_BYTES, `${bytesRead()} bytes were read`)
  await decide()
  assert.deepEqual(await verdicts(1), [200])
  await until('the service has ended its side', () => wire.ended)
})
