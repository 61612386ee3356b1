import type { Row } from '../../dist/store/sqljs/journal-format.js'
import { token } from '../../test/support/tokens.ts'
import { head, Wire } from '../../test/support/wire.ts'
import { wholeNumber } from '../variables.ts'
import { filledDirectory, mib, startMeasured } from './service.ts'

const OWNERS = 100_000
const PLANTS = 1_000_000
const TOKENS = wholeNumber('TOKENS', 100_000)
/** Requests that one connection sends at once. */
const BATCH = 100
/** A connection of these tests keeps what it has read, so each sends only this much. */
const TOKENS_A_CONNECTION = 2000
const CONNECTIONS = 4

/** What memory different tokens take in a large store. Each answer is checked. */
export async function measure(): Promise<void> {
  const service = await startMeasured(await filledDirectory(rows()), {
    PLANTS_RATE_LIMIT: '1000000',
  })
  const show = (what: string): void => console.log(`${what}: ${mib(service.memory().residentMiB)}`)
  show('started')
  const round = CONNECTIONS * TOKENS_A_CONNECTION
  for (let from = 0; from < TOKENS; from += round) {
    const starts = Array.from({ length: CONNECTIONS }, (_, at) => from + at * TOKENS_A_CONNECTION)
    await Promise.all(starts.map((at) => askWithNewTokens(service.port, at)))
    const done = from + round
    if (done % (5 * round) === 0) show(`${done} tokens of ${Math.min(done, OWNERS)} owners`)
  }
  const code = await service.kill('SIGTERM')
  if (code !== 0) throw new Error(`the service ended with ${code}`)
}

function* rows(): Generator<Row> {
  for (let at = 0; at < PLANTS; at++) yield ['million', String(at), `plant ${at}`]
  for (let at = 0; at < OWNERS; at++) yield [`owner ${at}`, '1', `of ${at}`]
}

async function askWithNewTokens(port: number, from: number): Promise<void> {
  const wire = await Wire.to(port)
  for (let at = 0; at < TOKENS_A_CONNECTION; at += BATCH) {
    const batch = Array.from({ length: BATCH }, (_, i) => from + at + i)
    const bearer = (n: number): string => token(`owner ${n % OWNERS}`, { jti: String(n) })
    wire.write(batch.map((n) => head('GET', '/plants', { token: bearer(n) })).join(''))
    const answers = (await wire.answers(at + BATCH)).slice(at)
    for (const [i, { body }] of answers.entries())
      if (body !== `[{"name":"of ${(from + at + i) % OWNERS}"}]`) throw new Error(body)
  }
  wire.destroy()
}
