import type { WireAnswer } from '../response.ts'
import type { Realm } from './realm.ts'
import { type Reading, valuesOf } from './requests.ts'

/**
 * Errors of what the parser may have refused, which does not know who asked. Of one to HEAD only
 * the status is seen.
 */
const UNREAD: ReadonlySet<number> = new Set([40001, 40801, 43101, 40000, 40800, 43100])

/** Checks what an answer says to pages of other origins. @throws Error that says what is wrong. */
export function checkCors(
  reading: Exclude<Reading, { readonly kind: 'unclear' }>,
  { headers }: WireAnswer,
  outcome: number,
  { origins }: Realm,
): void {
  const [named, second] = headers.get('access-control-allow-origin') ?? []
  const [sent, more] = reading.kind === 'request' ? valuesOf(reading, 'origin') : []
  const isOne = sent !== undefined && more === undefined
  const own = isOne ? origins.find((each) => each === '*' || each === sent) : undefined
  const only = origins.length === 1 ? origins : []
  // The parser may refuse these before it passes on their Origin.
  const isFaulty =
    reading.kind === 'malformed' ||
    !/^1\.[01]$/.test(reading.version) ||
    reading.doubts.length > 0
  const unread = isFaulty ? [undefined, own, ...origins] : [own, ...only]
  // The parser answers CONNECT too.
  const isConnect = reading.kind === 'request' && reading.method === 'CONNECT'
  const isUnread = isConnect || UNREAD.has(outcome)
  const expected: readonly unknown[] = isUnread ? unread : [own]
  if (second !== undefined || !expected.includes(named))
    throw new Error(`${outcome} allows ${named} to the origin ${sent}`)
  const all = [...headers.keys()].filter((name) => name.startsWith('access-control-'))
  const count = named === undefined ? 0 : outcome === 204 ? 5 : 2
  if (all.length !== count || headers.has('access-control-allow-credentials'))
    throw new Error(`${outcome} with ${all.join(' and ')}`)
}
