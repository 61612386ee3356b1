import type { Content } from '../ledger.ts'
import type { WireAnswer } from '../response.ts'

/**
 * Checks what every answer must be, and returns its outcome: 200, 204, or the value of `error`. An
 * answer to HEAD does not show that value: then the outcome is `status × 100`. `allow` is a
 * pattern of what Allow may say.
 * @throws Error that says what is wrong.
 */
export function outcomeOf(answer: WireAnswer, isHead: boolean, allow: string): number {
  const { status, headers, body, framing } = answer
  const one = (name: string, form: RegExp): string => {
    const values = headers.get(name) ?? []
    if (values.length !== 1 || !form.test(values[0] ?? ''))
      throw new Error(`${status} with ${name}: ${values.join(' and ')}`)
    return values[0] ?? ''
  }
  one('cache-control', /^no-store$/)
  one('x-content-type-options', /^nosniff$/)
  one('request-id', /^[\x21-\x7e]{1,128}$/)
  one('date', / GMT$/)
  if (status === 204) {
    one('allow', new RegExp(`^(?:${allow})$`))
    for (const name of ['content-type', 'content-length', 'transfer-encoding'])
      if (headers.has(name)) throw new Error(`204 with ${name}`)
    return 204
  }
  one('content-type', /^application\/json$/)
  if (framing === 'none' && !isHead) throw new Error('an answer without a body')
  if (status === 200) return 200
  const outcome = isHead ? status * 100 : errorOf(status, body)
  checkErrorHeaders(status, outcome, allow, one, headers)
  return outcome
}

function errorOf(status: number, body: string): number {
  const value: unknown = JSON.parse(Buffer.from(body, 'latin1').toString('utf8'))
  if (typeof value !== 'object' || value === null || Object.keys(value).join() !== 'error,message')
    throw new Error(`${status} with the body ${body.slice(0, 200)}`)
  // The members were checked above, and their types are below.
  const { error, message } = value as { readonly error: unknown; readonly message: unknown }
  if (
    typeof error !== 'number' ||
    !Number.isInteger(error) ||
    Math.floor(error / 100) !== status ||
    error % 100 === 0 ||
    typeof message !== 'string' ||
    message === ''
  )
    throw new Error(`${status} with the body ${body.slice(0, 200)}`)
  return error
}

/** Headers that belong to some errors, and to no other. */
const BELONGING: readonly (readonly [
  name: string,
  errors: (outcome: number) => boolean,
  form: (outcome: number, allow: string) => RegExp,
])[] = [
  [
    'www-authenticate',
    (outcome) => [401, 403].includes(Math.floor(outcome / 100)) || outcome === 40003,
    challengeOf,
  ],
  [
    'allow',
    (outcome) => Math.floor(outcome / 100) === 405,
    (_, allow) => new RegExp(`^(?:${allow})$`),
  ],
  ['accept-encoding', (outcome) => outcome === 41502, () => /^identity$/],
  ['retry-after', (outcome) => [429, 503].includes(Math.floor(outcome / 100)), () => /^[1-9]\d*$/],
  ['link', () => false, () => /./],
]

function challengeOf(outcome: number): RegExp {
  if (outcome === 40003) return /, error="invalid_request"$/
  if (outcome === 40101) return /^Bearer realm="plants"$/
  if (outcome === 40301) return /, error="insufficient_scope", scope="plants:(?:read|write)"$/
  return outcome > 40101 && outcome < 40200 ? /, error="invalid_token"$/ : /^Bearer realm="plants"/
}

function checkErrorHeaders(
  status: number,
  outcome: number,
  allow: string,
  one: (name: string, form: RegExp) => string,
  headers: WireAnswer['headers'],
): void {
  for (const [name, belongs, form] of BELONGING) {
    if (belongs(outcome)) one(name, form(outcome, allow))
    // An answer to HEAD does not show which error it is.
    else if (headers.has(name) && outcome % 100 !== 0)
      throw new Error(`${status} with ${name}: ${headers.get(name)?.join(' and ')}`)
  }
}

/** The plants of a body. @throws Error if it is no array of Plant objects. */
export function plantsOf(body: string): readonly Content[] {
  const value: unknown = JSON.parse(Buffer.from(body, 'latin1').toString('utf8'))
  if (!Array.isArray(value)) throw new Error(`no array: ${body.slice(0, 200)}`)
  return value.map(plantOf)
}

export function plantOf(value: unknown): Content {
  // Each member is checked below.
  const { name, tag, ...more } = value as { readonly name: unknown; readonly tag?: unknown }
  if (typeof name !== 'string' || Object.keys(more).length > 0)
    throw new Error(`no Plant: ${JSON.stringify(value).slice(0, 200)}`)
  if (tag === undefined) return { name }
  if (typeof tag !== 'string') throw new Error(`no Plant: ${JSON.stringify(value).slice(0, 200)}`)
  return { name, tag }
}
