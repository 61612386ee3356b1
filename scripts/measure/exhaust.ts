import { once } from 'node:events'
import { call, post } from '../../test/support/http.ts'
import { plantsOf } from '../../test/support/ledger.ts'
import { token } from '../../test/support/tokens.ts'
import { head, Wire } from '../../test/support/wire.ts'
import { filledDirectory, mib, type MeasuredService, startMeasured } from './service.ts'

const OWNERS = 100_000
const PLANTS = 1_000_000
const TOKENS = Number(process.env['TOKENS'] ?? 100_000)
/** Requests that one connection sends at once. */
const BATCH = 100
/** A connection of these tests keeps what it has read, so each sends only this much. */
const TOKENS_A_CONNECTION = 2000
const CONNECTIONS = 4
const MILLION = token('million', { exp: Date.now() / 1000 + 86_400 })

/** Different tokens, and long lists, of a large store: what memory they take, and right answers. */
export async function measure(): Promise<void> {
  const service = await startMeasured(await filledDirectory(rows()), {
    PLANTS_RATE_LIMIT: '1000000',
  })
  const show = (what: string): void => {
    console.log(`${what}: ${mib(service.memory().residentMiB)}`)
  }
  show('started')
  const round = CONNECTIONS * TOKENS_A_CONNECTION
  for (let from = 0; from < TOKENS; from += round) {
    const starts = Array.from({ length: CONNECTIONS }, (_, at) => from + at * TOKENS_A_CONNECTION)
    await Promise.all(starts.map((at) => askWithNewTokens(service.port, at)))
    const done = from + round
    if (done % (5 * round) === 0) show(`${done} tokens of ${Math.min(done, OWNERS)} owners`)
  }
  await askForLongLists(service, show)
  await createWhileListing(service)
  show('100 creates in the middle of a list')
  const code = await service.kill('SIGTERM')
  if (code !== 0) throw new Error(`the service ended with ${code}`)
}

function* rows(): Generator<[string, string, string]> {
  for (let at = 0; at < PLANTS; at++) yield ['million', String(2 * at), `plant ${at}`]
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

async function askForLongLists(
  { port }: MeasuredService,
  show: (what: string) => void,
): Promise<void> {
  const list = async (path: string): ReturnType<typeof call> => {
    const startedAtMs = performance.now()
    const reply = await call(port, { token: MILLION, path })
    show(`${path.slice(0, 20)} in ${(performance.now() - startedAtMs).toFixed(0)} ms`)
    return reply
  }
  if (plantsOf((await list('/plants')).text).length !== PLANTS) throw new Error('not all plants')
  const page = await list(`/plants?limit=${PLANTS - 1}`)
  const next = /^<(.*)>/.exec(String(page.headers['link']))?.[1]
  const last = await list(`/plants${next?.replace(/limit=\d+/, 'limit=1')}`)
  if (last.text !== `[{"name":"plant ${PLANTS - 1}"}]` || last.headers['link'] !== undefined)
    throw new Error(last.text)
}

/** Creates must not appear in a list that was cut before. */
async function createWhileListing({ port }: MeasuredService): Promise<void> {
  const wire = await Wire.to(port)
  wire.write(head('GET', `/plants?limit=${PLANTS}`, { token: MILLION }))
  while (!wire.text.includes('\r\n\r\n')) await once(wire.socket, 'data')
  wire.socket.pause()
  for (let i = 0; i < 100; i++) {
    const { status } = await post(port, { id: 20_000 * i + 1, name: 'new' }, { token: MILLION })
    if (status !== 200) throw new Error(`a create got ${status}`)
  }
  wire.socket.resume()
  const [answer] = await wire.answers(1)
  if (plantsOf(answer?.body ?? '').length !== PLANTS) throw new Error('a list with later plants')
  wire.destroy()
}
