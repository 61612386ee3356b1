import { type Content, isSame, type Ledger, plantOf as plantWithId } from '../ledger.ts'
import type { WireAnswer } from '../response.ts'
import { checkCors } from './cors.ts'
import { outcomeOf, plantOf, plantsOf } from './form.ts'
import { closesAfter, DISCARD_MAX_BYTES, expectsContinue, judge } from './judge.ts'
import { operationOf, routeOf, ROUTES, type Wish } from './operations.ts'
import type { Owner } from './owner.ts'
import type { Realm } from './realm.ts'
import { has, type Reading, type Request, valuesOf } from './requests.ts'

/** What the service should hold, and the configuration that it runs with. */
export interface World {
  readonly realm: Realm
  /** Owners that one connection at a time writes for. */
  readonly owners: Map<string, Owner>
  /** Tokens of the owners that every connection writes for; their plants are in the ledger. */
  readonly shared: ReadonlyMap<string, string>
  readonly ledger: Ledger
}

/** What one connection received. */
export interface Heard {
  readonly answers: readonly WireAnswer[]
  /** Whether the client broke off, so that answers may be missing. */
  readonly cut: boolean
  /** How the connection ended, in words. */
  readonly end: string
  readonly isReset: boolean
  readonly tookMs: number
  /** What was no answer, or took too long. */
  readonly flaw: string | undefined
}

/** The plants of each shared owner that a later list must hold. */
type Certain = ReadonlyMap<string, ReadonlyMap<bigint, Content>>

/** A shared owner's plants all have this text after the id, so that no create is ever refused. */
export const SHARED_TEXT = 'of all'
/** A pattern of what Allow says where the path is not known. */
const ANY_ALLOW = ROUTES.map(({ allow }) => allow).join('|')
const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/
/** The design: one is served, and this many wait; with more the connection is reset. */
const AT_ONCE = 8
/** Statuses that are allowed where readers may differ. */
const LEGAL: ReadonlySet<number> = new Set([
  200, 204, 400, 401, 403, 404, 405, 408, 409, 413, 415, 417, 431, 501, 507,
])

/**
 * The design: after its last answer on a connection the service reads on this long. A client that
 * still sends then is reset, and may lose answers (RFC 9112 §9.6).
 */
const LINGER_MS = 1000
/** The design: how long the service waits for headers; the maximum allows for a loaded machine. */
const [STALL_MIN_MS, STALL_MAX_MS] = [10_000, 25_000]

/** To be called before anything is sent: from then on other connections may see it. */
export function announce(readings: readonly Reading[], { realm, shared, ledger }: World): void {
  for (const reading of readings) {
    if (reading.kind === 'unclear')
      for (const [, id = ''] of reading.rest.matchAll(/"(\d+) of all"/g))
        for (const owner of shared.keys()) ledger.sends(owner, plantWithId(BigInt(id), SHARED_TEXT))
    if (reading.kind !== 'request') continue
    const { wish } = judge(reading, realm)
    if (wish?.kind === 'create' && shared.has(wish.owner))
      ledger.sends(wish.owner, { id: wish.id, ...wish.plant })
  }
}

/** How many answers come even if the client keeps its side open. */
export function certainAnswers(readings: readonly Reading[]): number {
  const isGood = (reading: Reading): boolean =>
    reading.kind === 'request' && reading.broken.length === 0 && reading.doubts.length === 0
  const first = readings.findIndex((reading) => !isGood(reading))
  return first < 0 ? readings.length : first
}

/** What is wrong, if anything, and whether answers were lost that the service does not promise. */
export interface Comparison {
  readonly flaw: string | undefined
  readonly lost: boolean
}

/** What a comparison needs besides requests and answers. */
interface Context {
  readonly heard: Heard
  readonly world: World
  readonly certain: Certain
  readonly killed: boolean
}

/**
 * Compares what came back with what was sent, and adds it to the model. `certain` is what shared
 * owners had before. Nothing after the first flaw is believed.
 */
export function compare(
  readings: readonly Reading[],
  heard: Heard,
  world: World,
  certain: Certain,
  killed: boolean,
): Comparison {
  const found = (flaw: string | undefined): Comparison => ({ flaw, lost: false })
  const context = { heard, world, certain, killed }
  const { answers } = heard
  if (heard.flaw !== undefined && !killed) return found(heard.flaw)
  let next = 0
  for (const [index, reading] of readings.entries()) {
    const answer = answers[next]
    if (answer === undefined) return compareMissing(readings, index, context)
    try {
      if (reading.kind === 'unclear') {
        blur(reading.rest, world)
        answers.slice(next).forEach(checkLoosely)
        return found(undefined)
      }
      const outcome =
        reading.kind === 'malformed'
          ? checkRefusal(reading, answer, heard.tookMs)
          : checkAnswer(reading, answer, context)
      checkCors(reading, answer, outcome, world.realm)
      next += 1
      if (checkClosing(reading, answer, outcome, readings[index + 1])) break
    } catch (error) {
      return found(`request ${index}: ${error instanceof Error ? error.message : String(error)}`)
    }
  }
  const { length } = answers
  return found(length > next ? `${length} answers instead of ${next}` : undefined)
}

/** The answers from this request on are missing. */
function compareMissing(readings: readonly Reading[], index: number, context: Context): Comparison {
  const { heard, world, killed } = context
  const rest = readings.slice(index)
  const isIgnored = index > 0 && mayBeIgnored(rest[0])
  const isTooMuch = readings.length > AT_ONCE && heard.isReset
  const mayHaveEnded = readings.slice(0, index).some(isLongUnread)
  const isDesigned = isIgnored || isTooMuch || mayHaveEnded
  const isExcused = rest[0]?.kind === 'unclear' || isDesigned || heard.cut || killed
  // The client was reset: not too early, and only after a request that may have been the last.
  const isReset = heard.isReset && heard.tookMs >= LINGER_MS
  const lost = !isExcused && isReset && rest.some((reading) => mayBeLast(reading, world))
  if (!isExcused && !lost) {
    const end = `the connection ended after ${Math.round(heard.tookMs)} ms ${heard.end}`
    return { flaw: `request ${index} is not answered, and ${end}`, lost }
  }
  leaveOpen(rest, world)
  return { flaw: undefined, lost }
}

/** The design: a request with a chunked body that waits is not served, nor is what follows it. */
function mayBeIgnored(reading: Reading | undefined): boolean {
  if (reading?.kind !== 'request') return reading !== undefined
  return has(reading, 'transfer-encoding') || reading.broken.length > 0
}

/** The design: a longer chunked body that is not wanted ends the connection after its answer. */
function isLongUnread(reading: Reading): boolean {
  const isChunked = reading.kind === 'request' && reading.framing === 'chunked'
  return isChunked && reading.body.length > DISCARD_MAX_BYTES
}

function mayBeLast(reading: Reading, world: World): boolean {
  if (reading.kind !== 'request') return true
  const { errors, wish } = judge(reading, world.realm)
  const outcomes = [...errors, ...(wish ? [200] : [])]
  return outcomes.some((outcome) => closesAfter(reading, outcome) !== 'no')
}

type Malformed = Extract<Reading, { kind: 'malformed' }>

function checkRefusal({ mayBeHead, errors }: Malformed, answer: WireAnswer, ms: number): number {
  const isHead = mayBeHead && answer.framing === 'none'
  const outcome = outcomeOf(answer, isHead, ANY_ALLOW)
  expectOneOf(errors, outcome, isHead)
  if (outcome === 40801 && (ms < STALL_MIN_MS || ms > STALL_MAX_MS))
    throw new Error(`${outcome} after ${Math.round(ms)} ms`)
  return outcome
}

/** Whether the answer says that the connection ends. */
function checkClosing(
  reading: Request | Malformed,
  answer: WireAnswer,
  outcome: number,
  after: Reading | undefined,
): boolean {
  const said = (answer.headers.get('connection') ?? []).includes('close')
  const isRequest = reading.kind === 'request'
  const closes = isRequest ? closesAfter(reading, outcome) : 'yes'
  const isOpen = closes === 'either' || (isRequest && mayBeIgnored(after))
  if (!isOpen && (closes === 'yes') !== said)
    throw new Error(`${outcome} ${said ? 'with' : 'without'} Connection: close`)
  if (isRequest && answer.framing === 'close' && reading.version !== '1.0')
    throw new Error('a body that ends with the connection')
  return said || answer.framing === 'close'
}

function checkAnswer(request: Request, answer: WireAnswer, context: Context): number {
  const isHead = request.method === 'HEAD' && answer.framing === 'none'
  const outcome = outcomeOf(answer, isHead, routeOf(request)?.allow ?? ANY_ALLOW)
  const own = valuesOf(request, 'request-id')
  const ids = own.length > 0 ? own : valuesOf(request, 'x-request-id')
  const id = answer.headers.get('request-id')?.[0] ?? ''
  const isUsable = ids.length === 1 && /^[\x21-\x7e]{1,128}$/.test(ids[0] ?? '')
  // The parser may refuse a request before it has read this header.
  const mayBeUnread = outcome === 40001 || outcome === 43101
  if (isUsable ? id !== ids[0] && !mayBeUnread : !UUID.test(id))
    throw new Error(`the Request-Id ${id}`)
  const mayContinue = expectsContinue(request) && operationOf(request)?.method === 'POST'
  if (answer.interim > (mayContinue ? 1 : 0)) throw new Error('100 that was not asked for')

  const { errors, wish } = judge(request, context.world.realm)
  if (errors.some((error) => shownAs(error, isHead) === outcome)) return outcome
  const granted = wish ? grantWish(wish, answer, outcome, context) : []
  expectOneOf([...errors, ...granted], outcome, isHead)
  return outcome
}

function expectOneOf(expected: readonly number[], outcome: number, isHead: boolean): void {
  if (!expected.some((each) => shownAs(each, isHead) === outcome))
    throw new Error(`${outcome} instead of ${expected.join(' or ')}`)
}

/** Without a body, as to HEAD, only the status of an error is seen. */
function shownAs(outcome: number, isHead: boolean): number {
  return isHead && outcome > 999 ? Math.floor(outcome / 100) * 100 : outcome
}

/** Outcomes that a good request may have. Checks what a right answer says, and records it. */
function grantWish(
  wish: Wish,
  answer: WireAnswer,
  outcome: number,
  { world, certain }: Context,
): readonly number[] {
  if (wish.kind === 'options') return [204]
  const { ledger } = world
  const isShared = world.shared.has(wish.owner)
  const owner = world.owners.get(wish.owner)
  if (owner && !owner.isCertain)
    throw new Error(`the oracle does not know what ${owner.name} has, and should not have asked`)
  if (wish.kind === 'read') {
    if (!isShared) return owner ? wish.check(owner, answer, outcome) : []
    if (wish.isList && outcome === 200 && answer.framing !== 'none') {
      const before = certain.get(wish.owner) ?? new Map<bigint, Content>()
      ledger.showsCertain(wish.owner, plantsOf(answer.body), before, false)
      throwProblem(ledger)
    }
    return [wish.isList ? 200 : outcome]
  }
  const full = world.realm.mayBeFull ? [50701] : []
  const isStored = outcome === 200
  if (isStored && !isSame(plantOf(answer.body), wish.plant))
    throw new Error(`200 with ${answer.body.slice(0, 200)}`)
  if (isShared) {
    if (isStored) ledger.answered(wish.owner, { id: wish.id, ...wish.plant }, 200)
    throwProblem(ledger)
    return [200, ...full]
  }
  if (!owner) return []
  const kept = owner.plants.get(wish.id)
  if (kept) return [isSame(kept, wish.plant) ? 200 : 40901, ...full]
  if (isStored) owner.keep(wish.id, wish.plant)
  return [200, ...full]
}

function throwProblem({ problems }: Ledger): void {
  const problem = problems.pop()
  if (problem !== undefined) throw new Error(problem)
}

/** Sent and not answered: every create may have been stored. */
function leaveOpen(readings: readonly Reading[], world: World): void {
  for (const reading of readings) {
    if (reading.kind === 'unclear') blur(reading.rest, world)
    if (reading.kind !== 'request') continue
    const { wish } = judge(reading, world.realm)
    if (wish?.kind === 'create') world.owners.get(wish.owner)?.mayHold(wish.id, wish.plant)
  }
}

function blur(rest: string, { realm, owners }: World): void {
  for (const owner of owners.values())
    if (rest.includes(owner.token.slice(-40)) && realm.grants.has(owner.token)) owner.blurred = true
}

function checkLoosely(answer: WireAnswer): void {
  if (!LEGAL.has(answer.status)) throw new Error(`the status ${answer.status}`)
  outcomeOf(answer, answer.framing === 'none', ANY_ALLOW)
}
