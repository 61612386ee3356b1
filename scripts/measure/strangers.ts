/*
 * Durable POSTs of one owner, first alone and then beside strangers who send RATE bad ES512
 * signatures a second: how long each takes, and how long another owner's GET and /livez wait. With
 * KEYS=n the set has n keys for ES512, and no token a kid: each key is tried.
 */
import { generateKeyPairSync, randomBytes } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { Agent } from 'node:http'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { temporaryDirectorySync } from '../../test/support/directories.ts'
import { call } from '../../test/support/http.ts'
import { KEY_SET, PUBLIC_SIGNERS } from '../../test/support/oracle/keys.ts'
import { AUDIENCE, ISSUER, signToken } from '../../test/support/tokens.ts'
import { head, postBytes } from '../../test/support/wire.ts'
import { percentile } from '../figures.ts'
import { wholeNumber } from '../variables.ts'
import { COUNTER, probeDuring } from './prober.ts'
import { type MeasuredService, startMeasured } from './service.ts'

const RATE = wholeNumber('RATE', 240)
const SECONDS = wholeNumber('SECONDS', 5)
const KEYS = wholeNumber('KEYS', 1)
/** Half of a signature: 521 bits. */
const HALF_BYTES = 66
const TICK_MS = 10

interface Refusal {
  /** 0 without an answer. */
  readonly status: number
  readonly ms: number
}

const agent = new Agent({ keepAlive: true })

export async function measure(): Promise<void> {
  const directory = temporaryDirectorySync()
  const keyFile = join(directory, 'jwks.json')
  writeFileSync(keyFile, keySet())
  const service = await startMeasured(join(directory, 'data'), { PLANTS_JWKS_FILE: keyFile })
  console.log('quiet:')
  await measureOwners(service, 'alice', () => sleep(SECONDS * 1000))
  console.log(`${RATE} bad signatures a second:`)
  const refused = await measureOwners(service, 'carol', () => attack(service.port))
  const counts = [401, 503, 0].map(
    (status) => `${refused.filter((one) => one.status === status).length} times ${status}`,
  )
  const waits = refused.map(({ ms }) => ms)
  console.log(`  strangers: ${counts.join(', ')}, longest ${wait(waits, 1)}`)
  await service.kill('SIGKILL')
}

/** The signer's key is the last that is tried. */
function keySet(): string {
  const others = Array.from({ length: KEYS - 1 }, () =>
    generateKeyPairSync('ec', { namedCurve: 'P-521' }).publicKey.export({ format: 'jwk' }),
  )
  // The shape of what is written there.
  const { keys } = JSON.parse(KEY_SET) as { keys: unknown[] }
  return JSON.stringify({ keys: [...others, ...keys] })
}

/** Each time another owner writes: every POST must be a new plant. */
async function measureOwners<T>(
  { port, adminPort }: MeasuredService,
  writer: string,
  meanwhile: () => Promise<T>,
): Promise<T> {
  const [writing, reading] = [es512Token(writer), es512Token('bob')]
  for (const token of [writing, reading]) await call(port, { token })
  const post = postBytes({ id: COUNTER, name: 'x' }, { token: writing })
  const get = head('GET', '/plants?limit=1', { token: reading })
  const livez = head('GET', '/livez', { token: undefined })
  const probes = [
    { port, request: post },
    { port, request: get },
    { port: adminPort, request: livez },
  ]
  const [[posts = [], gets = [], lives = []], result] = await probeDuring(probes, meanwhile)
  const slow = `p99 ${wait(posts, 0.99)}, longest ${wait(posts, 1)}`
  console.log(`  POST p50 ${wait(posts, 0.5)}, ${slow}, ${posts.length} of them`)
  console.log(`  GET longest ${wait(gets, 1)}, /livez longest ${wait(lives, 1)}`)
  return result
}

function wait(ms: readonly number[], share: number): string {
  return `${percentile(ms, share).toFixed(1)} ms`
}

function es512Token(sub: string, sign?: () => Buffer): string {
  const [header, good] = PUBLIC_SIGNERS.find(([{ alg }]) => alg === 'ES512') ?? []
  if (!header || !good) throw new Error('there is no ES512 key')
  const exp = Math.floor(Date.now() / 1000) + 3600
  const named = KEYS === 1 ? header : { alg: 'ES512' }
  return signToken(named, { iss: ISSUER, aud: AUDIENCE, sub, exp }, sign ?? good)
}

/** This many requests a second, however long each takes. */
async function attack(port: number): Promise<Refusal[]> {
  const startedAtMs = performance.now()
  const sent: Promise<Refusal>[] = []
  const passedMs = (): number => performance.now() - startedAtMs
  const badSignature = (): Buffer => {
    // Both numbers are in range: refusing them takes a whole verification.
    const signature = randomBytes(2 * HALF_BYTES)
    signature[0] = signature[HALF_BYTES] = 0
    return signature
  }
  const ask = async (): Promise<Refusal> => {
    const askedAtMs = performance.now()
    const options = { token: es512Token('alice', badSignature), agent }
    const { status } = await call(port, options).catch(() => ({ status: 0 }))
    return { status, ms: performance.now() - askedAtMs }
  }
  for (; passedMs() < SECONDS * 1000; await sleep(TICK_MS))
    while (sent.length < (passedMs() / 1000) * RATE) sent.push(ask())
  return Promise.all(sent)
}
