import { STATUS_CODES } from 'node:http'
import { type Condition, conditions, HttpError } from '../errors.ts'
import type { HttpResponse } from '../http/response.ts'
import { OPERATIONS, type OperationName, ROUTES } from './operations.ts'

/** Failures that OPTIONS can meet: it is answered before the token is checked. */
const OF_OPTIONS: readonly Condition[] = [
  'malformedRequest',
  'hostInvalid',
  'requestTimeout',
  'headersTooLarge',
  'storageUnavailable',
]
/** Failures of requests that match none of the operations. */
const OF_OTHERS: readonly Condition[] = ['pathUnknown', 'methodNotAllowed', 'methodUnknown']

const PLANT = { $ref: '#/components/schemas/Plant' }
const NEW_PLANT = { $ref: '#/components/schemas/NewPlant' }
const ERROR = { $ref: '#/components/schemas/Error' }
const MONSTERA = { name: 'Monstera', tag: 'indoor' }

const TEXT = { type: 'string' }
const VISIBLE_ASCII = { type: 'string', pattern: '^[!-~]{1,128}$' }
const CHALLENGE = { type: 'string', pattern: '^Bearer realm="plants"' }
const NEXT_PAGE = {
  type: 'string',
  pattern: '^<\\?limit=[0-9]+&after=[A-Za-z0-9_-]+>; rel="next"$',
}
const LIMIT = { type: 'integer', format: 'int32', minimum: 0 }
const CURSOR = { type: 'string', minLength: 1 }
const SECONDS = { type: 'integer', minimum: 1 }

/** Headers of failures besides the Request-Id, by status. */
const FAILURE_HEADERS: Readonly<Record<number, object>> = {
  400: { 'WWW-Authenticate': header('RFC 6750; with error 40003 only.', CHALLENGE, false) },
  401: { 'WWW-Authenticate': header('RFC 6750.', CHALLENGE) },
  403: { 'WWW-Authenticate': header('RFC 6750.', CHALLENGE) },
  415: { 'Accept-Encoding': header('With error 41502 only.', { const: 'identity' }, false) },
  429: { 'Retry-After': header('Seconds to wait.', SECONDS) },
  503: { 'Retry-After': header('Seconds to wait.', SECONDS) },
}

interface Described {
  readonly description: string
  readonly headers: object
  readonly content: object | undefined
}

type Responses = Readonly<Record<string, Described>>

let document: HttpResponse | undefined

/** The OpenAPI 3.1 document of /plants. It is made at the first call: most services need none. */
export function openApiResponse(): HttpResponse {
  return (document ??= { status: 200, headers: [], body: Buffer.from(`${openApiText()}\n`) })
}

/** What `openapi.json` of the package holds, too, so in lines. */
export function openApiText(): string {
  return JSON.stringify(describeService(), undefined, 2)
}

function describeService(): object {
  const description =
    'Creates plant records, and lists those of the caller.\n\n' +
    'Every failure has an Error as its body; only a response to HEAD has no body. The values of ' +
    'its member `error` are stable; the messages are for people. After 408, 413, 431 and ' +
    'malformed HTTP (error 40001) the service closes the connection. No response may be ' +
    'cached.\n\n' +
    'PUT, PATCH and DELETE are answered with 405, other methods with 501, other paths with 404.'
  const license = { name: 'MIT', identifier: 'MIT' }
  const token = 'A JWT of the configured issuer and audience. Its owner claim owns the plants.'
  return {
    openapi: '3.1.0',
    // The version is that of the interface. A release has its own.
    info: { title: 'Plant store', version: '1.0.0', license, description },
    // Without a variable: generators take this text as their base URL.
    servers: [
      { url: 'http://127.0.0.1:8080', description: 'Where the service listens by default.' },
    ],
    security: [{ bearer: [] }],
    tags: [{ name: 'plants', description: 'The plants of the caller.' }],
    paths: Object.fromEntries(ROUTES.map(({ path }) => [path, pathItem(path)])),
    components: {
      schemas: schemas(),
      securitySchemes: {
        bearer: { type: 'http', scheme: 'bearer', bearerFormat: 'JWT', description: token },
      },
    },
  }
}

function schemas(): object {
  const name = text('The name of the plant: any Unicode text.')
  const tag = text('Tag that specifies the type of the plant: any Unicode text.')
  // Without minimum and maximum: most tools read them as doubles, and would round the maximum out
  // of range.
  const id = integer(
    'int64',
    'Identification number of the plant: from -2^63 to 2^63 - 1, in any JSON notation. Clients ' +
      'that keep numbers as doubles are exact up to 2^53 only.',
  )
  const error = integer('int32', 'Numeric error value: 100 times the status plus a running number.')
  const message = text('Error message text.')
  return {
    Plant: { type: 'object', required: ['name'], properties: { name, tag } },
    NewPlant: {
      description: 'Members of other names are ignored; two members of one name are an error.',
      allOf: [PLANT, { type: 'object', required: ['id'], properties: { id } }],
    },
    Error: { type: 'object', required: ['error', 'message'], properties: { error, message } },
  }
}

/** What the table of operations does not say. */
interface Description {
  readonly description: string
  readonly parameters?: readonly object[]
  readonly requestBody?: object
  readonly success: Described
}

const DESCRIPTIONS: Readonly<Record<OperationName, Description>> = {
  listPlants: {
    description: 'Lists the plants of the caller, ascending by id.',
    parameters: [
      parameter('limit', 'Maximum number of results; without it, all.', LIMIT),
      parameter('after', 'Only plants after this cursor, which a Link header contains.', CURSOR),
    ],
    success: respond(
      'The plants.',
      { Link: header('The next page, if `limit` cut the list (RFC 8288).', NEXT_PAGE, false) },
      { type: 'array', items: PLANT },
      { page: [MONSTERA, { name: 'Aloe' }] },
    ),
  },
  createPlant: {
    description:
      'Creates a plant. Repeating it is safe: the same id with the same content gets the same ' +
      'response. Each owner has ids of its own.',
    requestBody: {
      required: true,
      description: 'In UTF-8; 1 MiB at most unless the service is configured otherwise.',
      content: body(NEW_PLANT, { plant: { id: 7, ...MONSTERA } }),
    },
    success: respond('The plant is stored, and durable.', {}, PLANT, { plant: MONSTERA }),
  },
}

/** The operations of a path; a GET has a HEAD too, and each path has OPTIONS. */
function pathItem(path: string): object {
  const all = OPERATIONS.filter((each) => each.path === path)
  const described = all.map(({ name, method, errors }) => {
    const { description, success, ...rest } = DESCRIPTIONS[name]
    const responses = { 200: success, ...failures(isMetBy(errors)) }
    return [method.toLowerCase(), { ...operation(name, description), ...rest, responses }] as const
  })
  const { get, ...others } = Object.fromEntries(described)
  return { ...(get && { get, head: headOf(get) }), ...others, options: optionsOf(path) }
}

/** The failures of an operation: its own, and those that none calls its own. */
function isMetBy(own: readonly Condition[]): (condition: Condition) => boolean {
  const ofOne: readonly Condition[] = OPERATIONS.flatMap(({ errors }) => errors)
  return (condition) => own.includes(condition) || !ofOne.includes(condition)
}

function headOf(get: { readonly responses: Responses; readonly operationId: string }): object {
  const { responses, ...rest } = get
  const withoutContent = Object.entries(responses).map(([status, { description, headers }]) => [
    status,
    { description, headers },
  ])
  return {
    ...rest,
    ...operation(get.operationId.replace(/^list/, 'head'), 'Returns the headers of a list.'),
    responses: Object.fromEntries(withoutContent),
  }
}

function optionsOf(path: string): object {
  const name = `${path.slice(1)}Options`
  return {
    ...operation(name, 'Returns the allowed methods. Needs no token.'),
    security: [],
    responses: {
      204: respond('No Content', { Allow: header('The allowed methods.', TEXT) }),
      ...failures((condition) => OF_OPTIONS.includes(condition)),
    },
  }
}

/** The summary is the description's first sentence. */
function operation(operationId: string, description: string) {
  const [summary] = description.split('.')
  return { operationId, summary, description, tags: ['plants'] }
}

/** The failures of an operation by status, each with an example of every condition. */
function failures(canMeet: (condition: Condition) => boolean): Responses {
  const all = [...conditions.keys()].map((condition) => new HttpError(condition))
  const own = all.filter(({ condition }) => canMeet(condition) && !OF_OTHERS.includes(condition))
  const others = all.filter(({ condition }) => OF_OTHERS.includes(condition))
  const allow = header('The allowed methods; with error 40501 only.', TEXT, false)
  return {
    ...Object.fromEntries(
      own.map(({ status }) => [
        status,
        failure(
          STATUS_CODES[status] ?? '',
          FAILURE_HEADERS[status],
          own.filter((each) => each.status === status),
        ),
      ]),
    ),
    default: failure('A request that is none of these operations.', { Allow: allow }, others),
  }
}

function failure(
  description: string,
  headers: object | undefined,
  errors: readonly HttpError[],
): Described {
  const examples = errors.map(({ condition, error, message }) => [condition, { error, message }])
  return respond(description, headers, ERROR, Object.fromEntries(examples))
}

/** A response without a body if there is no schema. */
function respond(
  description: string,
  headers: object | undefined,
  schema?: object,
  examples: Readonly<Record<string, unknown>> = {},
): Described {
  const requestId = header('That of the request if it was valid, else a new one.', VISIBLE_ASCII)
  return {
    description,
    headers: { 'Request-Id': requestId, ...headers },
    content: schema && body(schema, examples),
  }
}

function text(description: string): object {
  return { type: 'string', description }
}

function integer(format: 'int32' | 'int64', description: string): object {
  return { type: 'integer', format, description }
}

function parameter(name: string, description: string, schema: object): object {
  return { name, in: 'query', description, schema }
}

function header(description: string, schema: object, required = true): object {
  return { required, description, schema }
}

/** A body in JSON; `values` are examples by name. */
function body(schema: object, values: Readonly<Record<string, unknown>>): object {
  const examples = Object.entries(values).map(([name, value]) => [name, { value }])
  return { 'application/json': { schema, examples: Object.fromEntries(examples) } }
}
