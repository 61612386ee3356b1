import { type Content, isSame } from '../ledger.ts'
import type { WireAnswer } from '../response.ts'
import { readBody } from './body.ts'
import { plantsOf } from './form.ts'
import type { Owner } from './owner.ts'
import type { Realm } from './realm.ts'
import { listsOf, type Request, trimSpace, valuesOf } from './requests.ts'

interface Create {
  readonly kind: 'create'
  readonly owner: string
  readonly id: bigint
  readonly plant: Content
}

/** The outcomes that fit what the owner has. @throws Error if the answer does not. */
type Check = (owner: Owner, answer: WireAnswer, outcome: number) => readonly number[]

interface Read {
  readonly kind: 'read'
  readonly owner: string
  /** The answer's body is a list. */
  readonly isList: boolean
  readonly check: Check
}

/** What a good request asks for. */
export type Wish = Create | Read | { readonly kind: 'options' }

export interface Judgement {
  /** Values of `error` that are right, beside what the wish itself may come to. */
  readonly errors: readonly number[]
  readonly wish: Wish | undefined
}

/** All that the oracle knows of an operation. */
interface Operation {
  readonly method: 'GET' | 'POST'
  /** "{name}" is any one segment. */
  readonly path: string
  readonly right: 'read' | 'write'
  /** What a request comes to whose token has the right. */
  readonly judge: (request: Request, owner: string, realm: Realm) => Judgement
}

export const OPERATIONS: readonly Operation[] = [
  { method: 'GET', path: '/plants', right: 'read', judge: judgeList },
  { method: 'POST', path: '/plants', right: 'write', judge: judgeCreate },
]

interface Route {
  readonly path: string
  readonly pattern: RegExp
  readonly byMethod: ReadonlyMap<string, Operation>
  /** Every method, as an Allow header names them. */
  readonly allow: string
}

export const ROUTES = [...new Set(OPERATIONS.map(({ path }) => path))].map((path): Route => {
  const byMethod = new Map<string, Operation>()
  for (const operation of OPERATIONS.filter((each) => each.path === path)) {
    byMethod.set(operation.method, operation)
    if (operation.method === 'GET') byMethod.set('HEAD', operation)
  }
  const pattern = new RegExp(`^${path.replace(/\{\w+\}/g, '[^/]+')}$`)
  return { path, pattern, byMethod, allow: [...byMethod.keys(), 'OPTIONS'].join(', ') }
})

export function routeOf({ target }: Pick<Request, 'target'>): Route | undefined {
  const path = pathOf(target)
  return ROUTES.find(({ pattern }) => pattern.test(path))
}

/** What a request asks for, if there is such an operation. */
export function operationOf(request: Pick<Request, 'method' | 'target'>): Operation | undefined {
  return routeOf(request)?.byMethod.get(request.method)
}

function pathOf(target: string): string {
  // RFC 9110 §4.2: without a host, or with user info, it is no URL of this service.
  const [path = ''] = target.replace(/^https?:\/\/[^/?#@]+/i, '').split('?')
  return path
}

const PLAIN_PARAMETER = /^[ \t]*[!#$%&'*+\-.^_`|~0-9A-Za-z]+=[!#$%&'*+\-.^_`|~0-9A-Za-z]+[ \t]*$/
function judgeCreate(request: Request, owner: string, { maxBodyBytes }: Realm): Judgement {
  const refuse = (...errors: readonly number[]): Judgement => ({ errors, wish: undefined })
  const [contentType = '', ...more] = valuesOf(request, 'content-type')
  if (more.length > 0) return refuse(40004)
  const type = readMediaType(contentType)
  if (type === 'other') return refuse(41501)
  const doubts = type === 'doubtful' ? [41501] : []
  const isOther = (values: readonly string[], ...usual: readonly string[]): boolean =>
    values.some((value) => !usual.includes(value.toLowerCase()))
  const isCoded = isOther(valuesOf(request, 'transfer-encoding'), 'identity', 'chunked')
  const isEncoded = isOther(listsOf(request, 'content-encoding'), 'identity')
  if (isEncoded || isCoded) return refuse(...doubts, 41502)
  const bytes = Math.max(request.declared, request.body.length)
  if (bytes > maxBodyBytes) return refuse(...doubts, 41301)
  if (request.broken.length > 0) return refuse(...doubts)
  const body = readBody(request.body)
  if ('errors' in body) return refuse(...doubts, ...body.errors)
  return { errors: doubts, wish: { kind: 'create', owner, ...body } }
}

/**
 * RFC 9110 §8.3.1. Parameters that readers treat differently (§5.6.6: empty, quoted) are doubtful.
 */
function readMediaType(value: string): 'json' | 'other' | 'doubtful' {
  const [essence = '', ...parameters] = value.split(';')
  if (trimSpace(essence).toLowerCase() !== 'application/json') return 'other'
  // The design: no longer one is read.
  if (value.length > 256) return 'other'
  const isPlain = (text: string): boolean => PLAIN_PARAMETER.test(text)
  if (value.includes('"') || !parameters.every(isPlain)) return 'doubtful'
  const charsets = parameters
    .map((text) => trimSpace(text).toLowerCase())
    .filter((text) => text.startsWith('charset='))
  return charsets.every((text) => /^charset=utf-?8$/.test(text)) ? 'json' : 'other'
}

function judgeList({ target }: Request, owner: string): Judgement {
  const query = target.slice(target.indexOf('?') + 1 || target.length)
  const given = (name: string): readonly string[] =>
    query.split('&').flatMap((pair) => {
      const [key = '', ...value] = pair.split('=')
      return decode(key) === name ? [decode(value.join('='))] : []
    })
  const [limits, cursors] = [given('limit'), given('after')]
  const isInt32 = (text: string): boolean => /^\d{1,10}$/.test(text) && Number(text) < 2 ** 31
  const errors: number[] = []
  if (limits.length > 1 || !limits.every(isInt32)) errors.push(40011)
  if (cursors.length > 1 || cursors[0] === '') errors.push(40012)
  if (errors.length > 0) return { errors, wish: undefined }
  const limit = limits[0] === undefined ? undefined : Number(limits[0])
  const [after] = cursors
  const check: Check = (its, answer, outcome) => {
    const from = after === undefined ? undefined : its.cursors.get(after)
    if (after !== undefined && from === undefined) return [40012]
    if (outcome === 200) checkList(its, limit, from, answer)
    return [200]
  }
  return { errors, wish: { kind: 'read', owner, isList: true, check } }
}

/** @throws Error if this is not the list after an id, up to a limit. */
function checkList(
  owner: Owner,
  limit: number | undefined,
  from: bigint | undefined,
  answer: WireAnswer,
): void {
  const all = owner.idsAfter(from)
  const ids = limit === undefined ? all : all.slice(0, limit)
  if (answer.framing !== 'none') {
    const listed = plantsOf(answer.body)
    const none = { name: '' }
    const isListed = (id: bigint, at: number): boolean =>
      isSame(owner.plants.get(id) ?? none, listed[at] ?? none)
    const found = `${owner.name}'s list has ${listed.length} plants, and should have ${ids.length}`
    if (listed.length !== ids.length || !ids.every(isListed))
      throw new Error(`${found}: ${answer.body.slice(0, 500)}`)
  }
  const last = ids.at(-1)
  const links = answer.headers.get('link') ?? []
  if (ids.length === all.length || last === undefined) {
    if (links.length > 0) throw new Error(`a whole list with Link: ${links.join(' and ')}`)
    return
  }
  const [, linkLimit, cursor = ''] =
    /^<plants\?limit=(\d+)&after=([A-Za-z0-9_-]+)>; rel="next"$/.exec(links.join()) ?? []
  if (Number(linkLimit) !== limit)
    throw new Error(`a list that is cut with Link: ${links.join(' and ')}`)
  if ((owner.cursors.get(cursor) ?? last) !== last)
    throw new Error(`one cursor for ${owner.cursors.get(cursor)} and ${last}`)
  owner.cursors.set(cursor, last)
}

/** Percent-decoding as in forms; a bad encoding stays as it is. */
function decode(text: string): string {
  return text
    .replaceAll('+', ' ')
    .replace(/(?:%[0-9A-Fa-f]{2})+/g, (run) =>
      Buffer.from(run.replaceAll('%', ''), 'hex').toString('utf8'),
    )
}
