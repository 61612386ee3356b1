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
  for (const [name, form] of Object.entries(headersOf(outcome, allow))) {
    if (form) one(name, form)
    // An answer to HEAD does not show which error it is.
    else if (headers.has(name) && !isHead)
      throw new Error(`${status} with ${name}: ${headers.get(name)?.join(' and ')}`)
  }
  return outcome
}

function errorOf(status: number, body: string): number {
  const value = jsonOf(body)
  const [error, message] = Object.values(Object(value)) as readonly unknown[]
  const code = Number(error)
  const isCode = Number.isInteger(error) && Math.floor(code / 100) === status && code % 100 > 0
  const isMessage = typeof message === 'string' && message !== ''
  if (Object.keys(Object(value)).join() !== 'error,message' || !isCode || !isMessage)
    throw new Error(`${status} with the body ${body.slice(0, 200)}`)
  return code
}

/** Headers that belong to some errors: what this one must have, and undefined what it must not. */
function headersOf(outcome: number, allow: string): Readonly<Record<string, RegExp | undefined>> {
  const status = Math.floor(outcome / 100)
  const isChallenge = status === 401 || status === 403 || outcome === 40003
  return {
    'www-authenticate': isChallenge ? challengeOf(outcome) : undefined,
    allow: status === 405 ? new RegExp(`^(?:${allow})$`) : undefined,
    'accept-encoding': outcome === 41502 ? /^identity$/ : undefined,
    'retry-after': status === 429 || status === 503 ? /^[1-9]\d*$/ : undefined,
    link: undefined,
  }
}

function challengeOf(outcome: number): RegExp {
  if (outcome === 40003) return /, error="invalid_request"$/
  if (outcome === 40101) return /^Bearer realm="plants"$/
  if (outcome === 40301) return /, error="insufficient_scope", scope="plants:(?:read|write)"$/
  return outcome > 40101 && outcome < 40200 ? /, error="invalid_token"$/ : /^Bearer realm="plants"/
}

/** The plants of a body. @throws Error if it is no array of Plant objects. */
export function plantsOf(body: string): readonly Content[] {
  const value = jsonOf(body)
  if (!Array.isArray(value)) throw new Error(`no array: ${body.slice(0, 200)}`)
  return value.map(contentOf)
}

/** The plant of a body. @throws Error if it is no Plant object. */
export function plantOf(body: string): Content {
  return contentOf(jsonOf(body))
}

function jsonOf(body: string): unknown {
  return JSON.parse(Buffer.from(body, 'latin1').toString('utf8'))
}

function contentOf(value: unknown): Content {
  // Each member is checked below.
  const { name, tag, ...more } = value as { readonly name: unknown; readonly tag?: unknown }
  const isTag = tag === undefined || typeof tag === 'string'
  if (typeof name !== 'string' || !isTag || Object.keys(more).length > 0)
    throw new Error(`no Plant: ${JSON.stringify(value).slice(0, 200)}`)
  return tag === undefined ? { name } : { name, tag }
}
